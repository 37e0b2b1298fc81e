"""From LMCache's configuration to an open store and realm, or a start-up error nobody overlooks.

LMCache swallows what a plugin's constructor raises and goes on without it: the engine is healthy
and shares nothing. So a wrong configuration is logged as a banner before it is raised.

Does file operations (opening the namespace, finding the model's identity), once per process and
settings; never on a request path. Serves I8.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharedfs_backend.exceptions import ConfigError, SharedFSError
from sharedfs_backend.identity import model_identity
from sharedfs_backend.inprocess.hashing import engine_hash, key_hash
from sharedfs_backend.inprocess.layouts import Layouts
from sharedfs_backend.inprocess.options import settings_from
from sharedfs_backend.inprocess.shared import Lease, SharedStores
from sharedfs_backend.layout import RealmDescriptor
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import Store

log = logging.getLogger("sharedfs_backend.inprocess")

POOL_SHARE_FOR_STORES = 0.5
"""Share of LMCache's CPU pool that stores under way may hold: the rest is for loads."""

_stores = SharedStores(lambda settings: Store(settings.root, settings=settings))


@dataclass(frozen=True, slots=True)
class Opened:
    """What a backend works with."""

    settings: Settings
    lease: Lease
    realm: Any
    layouts: Layouts
    partial_chunks: bool
    put_bytes_max: int

    @property
    def store(self) -> Any:
        return self.lease.store


def open_backend(config: Any, metadata: Any, stores: SharedStores = _stores) -> Opened:
    """Check the configuration, open the store, join the realm. Raises SharedFSError."""
    if config is None or metadata is None:
        raise ConfigError("LMCache gave no configuration or no metadata to its storage plugin")
    settings = settings_from(config.extra_config)
    blending = bool(config.enable_blending)
    hashed = key_hash(
        config.pre_caching_hash_algorithm,
        os.environ,
        blending=blending,
        engine=engine_hash(config.pre_caching_hash_algorithm),
    )
    name = metadata.model_name
    identity = model_identity(name, settings.identity_override(name), settings.strict_identity)
    if not identity.verified:
        log.warning("sharedfs: %s", identity.note)
    lease = stores.acquire(settings)
    try:
        realm = lease.store.realm(
            RealmDescriptor(
                model_identity=identity.text,
                identity_verified=identity.verified,
                shard=settings.shard,
                serde=settings.serde,
                hash_family=hashed.family,
            ),
            canary=hashed.canary,
        )
        return Opened(
            settings,
            lease,
            realm,
            Layouts(metadata, blending=blending),
            bool(config.save_unfull_chunk),
            int(config.max_local_cpu_size * (1 << 30) * POOL_SHARE_FOR_STORES),
        )
    except BaseException:
        lease.release()
        raise


def warn_of_hazards(config: Any) -> None:
    """Say once what this configuration cannot do right."""
    if config.use_layerwise and config.local_cpu:
        log.warning(
            "sharedfs: use_layerwise with local_cpu: LMCache ends the engine when a prompt's "
            "chunks are partly in its own CPU cache and partly here. Set local_cpu: false."
        )
    if lora_enabled():
        log.warning(
            "sharedfs: this engine serves LoRA adapters, and LMCache's keys do not tell them "
            "apart: requests that use an adapter need a salt of their own, "
            'kv_transfer_params {"lmcache.tag.lora": "<digest of the adapter>"}. Requests '
            "without it share KV with the base model. See docs/IDENTITY.md."
            "%s",
            " With use_layerwise LMCache drops the tag, so turn one of them off."
            if config.use_layerwise
            else "",
        )


def lora_enabled() -> bool:
    """Whether the engine being built in this process has LoRA; False where it cannot be told."""
    try:
        from vllm.config import get_current_vllm_config

        return getattr(get_current_vllm_config(), "lora_config", None) is not None
    except (ImportError, AssertionError):
        return False


@contextmanager
def start_up_errors_are_seen() -> Iterator[None]:
    """Log what goes wrong as a banner, then let it through."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, SharedFSError) else f"{type(error).__name__}: "
        line = "=" * 78
        log.critical(
            "\n%s\nsharedfs: THIS ENGINE SHARES NO KV. Its storage plugin could not start:\n"
            "%s%s\nvLLM goes on and recomputes everything; correct this and restart.\n%s",
            line,
            kind,
            error,
            line,
            exc_info=not isinstance(error, SharedFSError),
        )
        raise
