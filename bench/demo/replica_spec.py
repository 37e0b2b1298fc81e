"""What a replica is, and the commands and environment that make one.

The engine tests and the demo describe replicas by `ReplicaSpec`: model, dtype, adapter, LoRA,
tensor parallelism, environment; in-process mode instead of a server. The flags are those with which
two real engines run on one small machine without a GPU. The configurations are the examples that
users copy (launch/config), with this replica's root and ports.

Must not know: processes, HTTP, the store beyond the adapter configuration it writes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "launch" / "config"
CHUNK_TOKENS = 256
BLOCK_TOKENS = 128  # vLLM's KV block on CPU.


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What one replica is. Everything that two replicas may differ in is here."""

    name: str
    model: Path
    core: str = "0"  # VLLM_CPU_OMP_THREADS_BIND: "0", or "0|1" with two ranks.
    adapter: Mapping[str, object] | None = None  # --l2-adapter; None: no L2 at all.
    dtype: str = "float32"
    served_name: str | None = None  # LMCache keys carry the --model string, not this.
    model_argument: str | None = None  # What is typed after --model, when not the path.
    tensor_parallel: int = 1
    kv_cache_gib: int = 1
    l1_gib: float = 1.0
    chunk_tokens: int = CHUNK_TOKENS
    context_tokens_max: int = 8192
    loras: Mapping[str, Path] = field(default_factory=dict)
    # In-process mode: kv_transfer_config without a server. `lmcache_config` becomes a YAML/JSON
    # file named by LMCACHE_CONFIG_FILE.
    kv_transfer_config: Mapping[str, object] | None = None
    lmcache_config: Mapping[str, object] | None = None
    server_arguments: Sequence[str] = ()
    engine_arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    server_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_process(self) -> bool:
        """Whether LMCache lives in the engine, so that there is no server."""
        return self.kv_transfer_config is not None


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of one replica."""

    engine: int
    server: int
    server_http: int  # health, status and metrics


def plugin_adapter(root: Path | str, **settings: object) -> dict[str, object]:
    """Returns the --l2-adapter value of the example that users copy, on that namespace."""
    adapter: dict[str, object] = json.loads((EXAMPLES / "mp-adapter.json").read_text())
    return {**adapter, "adapter_params": {"root": str(root), **settings}}


def server_command(spec: ReplicaSpec, ports: Ports) -> list[str]:
    """Returns the command line of the replica's LMCache server."""
    command = [sys.executable, "-m", "lmcache.cli.main", "server"]
    command += ["--host", "127.0.0.1", "--port", str(ports.server)]
    command += ["--http-port", str(ports.server_http)]
    command += ["--l1-size-gb", str(spec.l1_gib), "--chunk-size", str(spec.chunk_tokens)]
    command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
    if spec.adapter is not None:
        command += ["--l2-adapter", json.dumps(spec.adapter)]
    return [*command, *spec.server_arguments]


def engine_command(spec: ReplicaSpec, ports: Ports) -> list[str]:
    """Returns the command line of the replica's vLLM engine."""
    connector = spec.kv_transfer_config or server_connector(ports)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", spec.model_argument or str(spec.model), "--host", "127.0.0.1"]
    command += ["--port", str(ports.engine), "--dtype", spec.dtype, "--enforce-eager"]
    command += ["--max-model-len", str(spec.context_tokens_max)]
    command += ["--kv-transfer-config", json.dumps(connector)]
    if spec.served_name:
        command += ["--served-model-name", spec.served_name]
    if spec.tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    if spec.loras:
        command += ["--enable-lora", "--lora-modules"]
        command += [f"{name}={path}" for name, path in spec.loras.items()]
    return [*command, *spec.engine_arguments]


def server_connector(ports: Ports) -> dict[str, object]:
    """Returns the --kv-transfer-config value of the example, for this replica's own server."""
    connector: dict[str, Any] = json.loads((EXAMPLES / "mp-connector.json").read_text())
    connector["kv_connector_extra_config"] |= {
        "lmcache.mp.port": ports.server,
        "lmcache.mp.mp_transfer_mode": "lmcache_driven",  # What works between CPU processes.
    }
    return connector


def python_path() -> str:
    """Returns PYTHONPATH with this repository first, for children that run elsewhere."""
    return os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])


def child_environment(spec: ReplicaSpec, scratch: Path) -> dict[str, str]:
    """Returns the environment of both processes: offline, no telemetry, caches out of $HOME."""
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_DISABLE_BANNER": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(spec.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": spec.core,
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
    }
