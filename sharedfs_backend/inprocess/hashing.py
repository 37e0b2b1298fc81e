"""Does this engine's chunk hash mean the same in every process? If not, sharing is refused (I8).

In this mode LMCache hashes token chunks with a function it takes from vLLM, seeded by vLLM's
NONE_HASH. With the default `builtin` algorithm, or a non-cryptographic one, the seed is random
unless PYTHONHASHSEED is set, so each process would ask for chunks under keys that mean something
else to all others: no hits at best. Refusing names the setting to change.

What cannot be told from one process (two engines with different fixed seeds, other versions) shows
in the canary: four bytes of a digest over the engine's own hash of a fixed token list. The realm
remembers the first one it saw and refuses others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from sharedfs_backend.exceptions import ConfigError

CANARY_TOKENS = tuple(range(1, 257))
"""One chunk of LMCache's default size; two are hashed, so that the chaining shows too."""
STABLE_WITHOUT_SEED = ("sha256", "sha256_cbor")
"""vLLM seeds these with a constant where PYTHONHASHSEED is unset."""
REMEDY = (
    'set "pre_caching_hash_algorithm: sha256_cbor" in the LMCache configuration (or '
    "LMCACHE_PRE_CACHING_HASH_ALGORITHM=sha256_cbor) of every engine"
)


@dataclass(frozen=True, slots=True)
class KeyHash:
    """How this engine names chunks: the realm's hash family, and the canary (4 bytes)."""

    family: str
    canary: bytes


@dataclass(frozen=True, slots=True)
class EngineHash:
    """The engine's own hash: `name` of the function, `chain(tokens, prefix)` as it applies it."""

    name: str
    chain: Callable[[list[int], Any], Any]
    seeded_by_constant: bool


def engine_hash(algorithm: str) -> EngineHash:
    """LMCache's hash for this algorithm, as this process's token database applies it.

    Building a second token database would draw a new seed behind the engine's back, so only its
    methods are borrowed.
    """
    from lmcache.v1.token_database import ChunkedTokenDatabase

    database = object.__new__(ChunkedTokenDatabase)
    database.hash_func = database._get_vllm_hash_func(algorithm)
    name = getattr(database.hash_func, "__name__", str(database.hash_func))
    try:
        from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed  # noqa: F401

        constant = True
    except ImportError:  # an older vLLM seeds every algorithm at random, none uses no seed
        constant = not _has_vllm()
    return EngineHash(name, database._hash_tokens, constant)


def _has_vllm() -> bool:
    from importlib.util import find_spec

    return find_spec("vllm") is not None


def key_hash(
    algorithm: str, environment: Mapping[str, str], *, blending: bool, engine: EngineHash
) -> KeyHash:
    """The engine's way of naming chunks. Raises ConfigError where it differs in every process."""
    seed = environment.get("PYTHONHASHSEED")
    seeded = seed is not None and seed != "random"
    stable = engine.name in STABLE_WITHOUT_SEED and engine.seeded_by_constant and seed is None
    if not (seeded or stable):
        wanted = "" if engine.name == algorithm else f" (in effect: {engine.name})"
        why = "PYTHONHASHSEED is random" if seed == "random" else "PYTHONHASHSEED is not set"
        raise ConfigError(
            f"pre_caching_hash_algorithm = {algorithm!r}{wanted} gives other chunk keys in every "
            f"process because {why}: nothing could be shared. Remedy: {REMEDY}"
            f"{'' if engine.seeded_by_constant else ', and PYTHONHASHSEED=0 with this vLLM'}."
        )
    kind = "lmcache-inprocess-blend" if blending else "lmcache-inprocess"
    return KeyHash(f"{kind}-{engine.name}", canary_of(engine))


def canary_of(engine: EngineHash) -> bytes:
    """Four bytes that two engines share exactly when they hash alike."""
    first = engine.chain(list(CANARY_TOKENS), None)
    second = engine.chain(list(CANARY_TOKENS), first)
    digest: bytes = blake3(f"{_plain(first)} {_plain(second)}".encode()).digest(length=4)
    return digest


def _plain(chunk_hash: Any) -> str:
    return chunk_hash.hex() if isinstance(chunk_hash, bytes) else str(int(chunk_hash))
