"""GekkoFS' preload client: which process may live under it, and what such a process must not do.

The client takes over a process's system calls. That belongs into the LMCache server alone: a forked
child hangs in its first call, a spawn that uses vfork aborts, locks taken through it drop the
process's real ones, and calls have no deadline. vLLM forks, spawns and locks files all the time. So
a store refuses to open in an engine's process, with the remedy, and elsewhere keeps Python's own
`subprocess` off vfork (a plain fork and exec is fine). An LMCache server spawns before it opens any
store, so under the client it is started through this module:

    env LD_PRELOAD=... python -m sharedfs_backend.preload lmcache.cli.main server ...
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Collection, Mapping

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.files.mounts import preload_client

ENGINE_MODULES = frozenset(
    {
        "vllm.engine.llm_engine",
        "vllm.entrypoints.openai.api_server",
        "vllm.v1.engine.core",
        "vllm.v1.worker.worker_base",
    }
)
"""Loaded in vLLM's processes, and not by an LMCache server beside them."""


def prepare_process(environ: Mapping[str, str], modules: Collection[str]) -> str | None:
    """Refuse or guard this process if a client is preloaded into it; the client's library, if so.

    Raises ConfigError in a vLLM process."""
    library = preload_client(environ)
    if library is None:
        return None
    if any(name in modules for name in ENGINE_MODULES):
        raise ConfigError(
            f"LD_PRELOAD holds {library} in a vLLM process, which forks, spawns and locks files: "
            "under GekkoFS' client it would hang or abort. Start vLLM without it, and preload it "
            "into the LMCache server alone (`env LD_PRELOAD=... python -m sharedfs_backend.preload "
            "lmcache.cli.main server ...`); or mount GekkoFS through its FUSE client"
        )
    avoid_vfork()
    return library


def avoid_vfork() -> None:
    """From now on `subprocess` and `multiprocessing` fork and exec, in this process."""
    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        if hasattr(subprocess, switch):
            setattr(subprocess, switch, False)


def main() -> None:
    """Run the module named first, as `python -m` would, with spawning guarded from the start."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m sharedfs_backend.preload MODULE [ARGUMENT...]")
    del sys.argv[0]
    prepare_process(os.environ, sys.modules)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
