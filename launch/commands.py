"""Commands: the command line and environment of each part of a fleet. Pure.

The configurations of LMCache and its connector are the examples that users copy (launch/config),
with this fleet's root and ports. Keys are never on a command line, which every user of a node can
read. GekkoFS's preload client is in the environment of the LMCache server and of what reads or
copies a namespace on GekkoFS, and of nothing else: engines fork, and a forked child hangs there.

Must not know: processes, files other than the two examples, Slurm.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.plan import NodePlan, ReplicaPlan
from launch.site import Site

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "launch" / "config"
LOOPBACK = "127.0.0.1"
HOSTS_FILE_VARIABLE = "FLEET_GEKKOFS_HOSTS"


@dataclass(frozen=True, slots=True)
class Command:
    """Words to run, and what is added to (or, where None, taken from) the environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Loopback ports of a node's LMCache server: for engines, and for health and metrics."""

    mp: int
    http: int


def server(site: Site, ports: ServerPorts, *, hosts_file: str = "") -> Command:
    """The node's LMCache server with the plugin."""
    adapter = json.loads((EXAMPLES / "mp-adapter.json").read_text())
    adapter["adapter_params"] = site.adapter_params
    preload = site.gekkofs and site.gekkofs_access == "preload"
    words = [sys.executable, "-m"]
    words += ["sharedfs_backend.preload"] if preload else []  # it must not spawn unguarded
    words += ["lmcache.cli.main", "server"]
    words += ["--host", LOOPBACK, "--port", str(ports.mp), "--http-port", str(ports.http)]
    words += ["--l1-size-gb", f"{site.l1_gib:g}", "--chunk-size", str(site.chunk_tokens)]
    words += ["--eviction-policy", "LRU", "--l2-adapter", json.dumps(adapter)]
    if site.device == "cpu":
        words += ["--supported-transfer-mode", "auto"]
    return Command((*words, *site.server_arguments), _common() | gekkofs_client(site, hosts_file))


def engine(
    site: Site, plan: NodePlan, replica: ReplicaPlan, ports: ServerPorts, port: int
) -> Command:
    """One vLLM replica. (`vllm serve` is the same program, but has another name in CPU builds.)"""
    connector: dict[str, Any] = json.loads((EXAMPLES / "mp-connector.json").read_text())
    connector["kv_connector_extra_config"]["lmcache.mp.port"] = ports.mp
    environment: dict[str, str | None] = {}
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", site.model, "--host", plan.address, "--port", str(port)]
    if site.device == "cpu":
        # What works between processes without a GPU.
        connector["kv_connector_extra_config"]["lmcache.mp.mp_transfer_mode"] = "lmcache_driven"
        environment["VLLM_CPU_OMP_THREADS_BIND"] = replica.cores
    else:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(replica.gpus)
        if len(replica.gpus) > 1:
            words += ["--tensor-parallel-size", str(len(replica.gpus))]
    words += ["--kv-transfer-config", json.dumps(connector)]
    return Command((*words, *site.engine_arguments), _common() | environment)


def announcer(
    site: Site, plan: NodePlan, replica: ReplicaPlan, ports: ServerPorts, port: int
) -> Command:
    """What keeps the replica announced while its engine answers."""
    words = [sys.executable, "-m", "router.announce", "--namespace", site.registry_root]
    words += ["--url", f"http://{plan.address}:{port}"]
    words += ["--lmcache-url", f"http://{LOOPBACK}:{ports.http}", "--model", site.model]
    words += ["--lease-seconds", str(site.lease_seconds)]
    if len(replica.gpus) > 1:
        words += ["--kv-world-size", str(len(replica.gpus))]
    if site.secret_file:
        words += ["--secret-file", site.secret_file]
    settings = site.adapter_params
    for name, option in (("shard", "--shard"), ("serde", "--serde")):
        if settings.get(name):
            words += [option, str(settings[name])]
    if settings.get("model_identity"):
        words += ["--model-identity", str(settings["model_identity"])]
    return Command(tuple(words), _common())


def router(site: Site, port: int) -> Command:
    """The router, which finds the replicas in the registry."""
    words = [sys.executable, "-m", "router", "--namespace", site.registry_root]
    words += ["--model", site.model, "--host", "0.0.0.0", "--port", str(port)]
    words += ["--drain-seconds", f"{site.drain_seconds:g}"]
    if site.secret_file:
        words += ["--secret-file", site.secret_file]
    if site.api_key_file:
        words += ["--api-key-file", site.api_key_file, "--replica-key-file", site.api_key_file]
    return Command((*words, *site.router_arguments), _common())


def init(site: Site, root: str, *, hosts_file: str = "") -> Command:
    """Create the namespace, or take note of a new cap."""
    words = [*SHAREDFS, "init", root]
    if root == site.namespace and site.client_library:
        words += ["--set", f"client_library={site.client_library}"]
    if site.cap and root == site.namespace:
        words += ["--cap", site.cap]
    if site.secret_file:
        words += ["--secret-file", site.secret_file]
    return Command(tuple(words), _common() | gekkofs_client(site, hosts_file, root))


def stage(
    site: Site, source: str, target: str, deadline_seconds: float | None, *, hosts_file: str = ""
) -> Command:
    """Copy packs between two namespaces, most valuable first."""
    words = [*SHAREDFS, "stage", "--from", source, "--to", target]
    if site.client_library:  # it sees the job's namespace, and not the kept one
        option = "--from-library" if source == site.namespace else "--to-library"
        words += [option, site.client_library]
    if site.stage_bytes:
        words += ["--bytes", site.stage_bytes]
    if deadline_seconds is not None:
        words += ["--deadline", f"{deadline_seconds:.0f}"]
    if site.secret_file:
        words += ["--secret-file", site.secret_file]
    return Command(tuple(words), _common() | gekkofs_client(site, hosts_file))


SHAREDFS = (sys.executable, "-c", "from sharedfs_backend.cli import main; main()")
"""The command, from a checkout that need not be installed."""


def gekkofs_client(site: Site, hosts_file: str, root: str | None = None) -> dict[str, str | None]:
    """The environment in which one process sees GekkoFS; empty without it, or for another root."""
    inside = (root or site.namespace).startswith(site.gekkofs_mount.rstrip("/") + "/")
    if not site.gekkofs or not inside:
        return {}
    found: dict[str, str | None] = {"LIBGKFS_HOSTS_FILE": hosts_file}
    if site.gekkofs_access == "preload":
        found["LD_PRELOAD"] = site.gekkofs_client
    return found


def python_path() -> str:
    """PYTHONPATH with this checkout first, for processes that run elsewhere."""
    return os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])


def _common() -> dict[str, str | None]:
    """This checkout first, logs unbuffered, no telemetry; a preload from outside does not leak."""
    return {
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LMCACHE_TRACK_USAGE": "false",
    }
