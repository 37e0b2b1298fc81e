"""Replicas in LMCache's in-process mode: what an engine test starts instead of a server pair.

The configuration is the example that users copy (launch/config/inprocess.yaml) with its root
replaced; around it only what a CPU machine needs. Must not know: the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are not installed

from bench.demo.replica_spec import ReplicaSpec

EXAMPLE = Path(__file__).resolve().parents[2] / "launch" / "config" / "inprocess.yaml"

CONNECTOR = {
    "kv_connector": "CpuLMCacheConnector",
    "kv_connector_module_path": "tests.engines.cpu_connector",
    "kv_role": "kv_both",
}


def lmcache_config(root: Path, changes: Mapping[str, object]) -> dict[str, Any]:
    """The example on this root, with LMCache's own keys and `sharedfs.*` ones changed."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    config["extra_config"]["sharedfs.root"] = str(root)
    for name, value in changes.items():
        if name.startswith("sharedfs."):
            config["extra_config"][name] = value
        else:
            config[name] = value
    return {"max_local_cpu_size": 0.5, **config}


def replica(
    name: str,
    model: Path,
    root: Path,
    core: str,
    changes: Mapping[str, object],
    engine_arguments: Sequence[str] = (),
) -> ReplicaSpec:
    """One engine whose LMCache lives inside it and stores below `root`."""
    return ReplicaSpec(
        name=name,
        model=model,
        core=core,
        kv_transfer_config=CONNECTOR,
        lmcache_config=lmcache_config(root, changes),
        engine_arguments=engine_arguments,
    )
