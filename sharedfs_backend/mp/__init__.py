"""LMCache's multi-process mode: the plugin named in `lmcache server --l2-adapter`.

    {"type": "plugin", "module_path": "sharedfs_backend.mp", "class_name": "SharedFSL2Adapter",
     "adapter_params": {"root": "/mnt/shared/kv"}}

`adapter` is what LMCache calls, `dispatcher` the one thread behind it, `runner` what a task does,
`leases` who holds which key (I7), `realms`, `serde` and `layouts` who may share (I8), `known`
LMCache's books, `results` the way back, `metrics` our part of `/metrics`.
Imports lmcache, never vllm.
"""

from sharedfs_backend.mp.adapter import SharedFSL2Adapter
from sharedfs_backend.mp.config import SharedFSL2AdapterConfig

__all__ = ["SharedFSL2Adapter", "SharedFSL2AdapterConfig"]
