"""What stands for a model's weights and for a LoRA adapter: identities that keep strangers apart.

`model_identity` answers by the first of: the configured text; the digest of a model directory (or
file); the commit a hub id resolves to in the local hub cache; the bare name, unverified, or with
`strict` something private to this process. Weights under two paths get one identity; two
fine-tunes with equal config and equal headers get two (I8).

`lora_salt` turns an adapter into a `cache_salt`: LMCache's keys know nothing of adapters, so a
request that uses one must carry it.

Only local files are read; the network never, the namespace never. It may take seconds for a large
model on a slow disk, once (then it is cached on the local disk): never call it on a request path.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from sharedfs_backend.identity_cache import IdentityCache, settled
from sharedfs_backend.layout.canonical import encode
from sharedfs_backend.weights import ModelFiles, WeightsError, digest_files, find_files

SALT_CHARS_MAX = 128
SALT_FORBIDDEN = frozenset("@/\\\0")
"""LMCache's own rules for a `cache_salt`."""

_SCHEME = 1
"""Changes whenever the digest over the same weights would change: old cache entries are left."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """`text` goes into the realm. `verified` is False where only a name vouches for the weights;
    `note` then says why and what to do, to be logged once."""

    text: str
    verified: bool
    note: str = ""


def model_identity(
    name_or_path: str,
    override: str | None = None,
    strict: bool = False,
    *,
    environ: Mapping[str, str] = os.environ,
    random_bytes: Callable[[int], bytes] = os.urandom,
    wall_ns: Callable[[], int] = time.time_ns,
) -> ModelIdentity:
    """The identity of the model that engines call `name_or_path`. Reads files; raises nothing.

    A hub id is taken at its `main`: an engine started with another revision needs `override`.
    """
    if override:
        return ModelIdentity(override, True)
    try:
        if os.path.exists(name_or_path):
            digest = _cached_digest(name_or_path, environ, random_bytes, wall_ns)
            return ModelIdentity(f"weights:{digest.hex()}", True)
        reason = "it is no path here and not in the local hub cache"
    except (WeightsError, OSError, ValueError) as error:
        reason = str(error)
    commit = hub_commit(name_or_path, environ)
    if commit is not None:
        return ModelIdentity(f"hub:{commit}", True)
    remedy = f"the weights of {name_or_path!r} cannot be identified ({reason}): set model_identity"
    if strict:
        text = f"private:{_process_token(random_bytes)}:{name_or_path}"
        return ModelIdentity(text, False, f"{remedy}; until then nothing is shared")
    return ModelIdentity(
        f"name:{name_or_path}", False, f"{remedy}; until then the name alone decides who shares"
    )


def hub_commit(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The commit that the hub id `name` resolves to in the local hub cache, if it is there."""
    if _HUB_NAME.fullmatch(name) is None or ".." in name or "--" in name:
        return None
    folder = os.path.join(_hub_cache(environ), "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, ValueError):
        return None
    if _COMMIT.fullmatch(commit) is None:
        return None
    return commit if os.path.isdir(os.path.join(folder, "snapshots", commit)) else None


def lora_digest(adapter_dir: str) -> str:
    """`lora-` and 32 hex digits over all of an adapter's content (its configuration, less where it
    came from, and every byte of its tensors), wherever it lies. Raises WeightsError."""
    try:
        files = find_files(adapter_dir)
    except OSError as error:
        raise WeightsError(f"{adapter_dir}: cannot be read: {error}") from error
    return "lora-" + digest_files(files, whole=True).hex()


def lora_salt(adapter_dir: str, salt: str = "") -> str:
    """The `cache_salt` for requests that use the adapter, keeping the caller's own `salt` apart.

    Send it with each such request, e.g. `{"model": "my-adapter", "cache_salt": lora_salt(path)}`.
    Only characters that LMCache allows, at most 128. Raises WeightsError, and ValueError for a
    salt that LMCache would refuse.
    """
    if len(salt) > SALT_CHARS_MAX or SALT_FORBIDDEN & set(salt):
        raise ValueError(f"a cache_salt has at most {SALT_CHARS_MAX} characters and no @ / \\ NUL")
    adapter = lora_digest(adapter_dir)
    joined = f"{adapter}.{salt}" if salt else adapter
    if len(joined) <= SALT_CHARS_MAX:
        return joined
    return f"{adapter}.{blake3(salt.encode()).hexdigest(length=16)}"


def _cached_digest(
    path: str,
    environ: Mapping[str, str],
    random_bytes: Callable[[int], bytes],
    wall_ns: Callable[[], int],
) -> bytes:
    files = find_files(os.path.realpath(path))
    cache = IdentityCache(environ, random_bytes)
    key = _cache_key(files)
    found = cache.get(key)
    if found is not None:
        return found
    digest = digest_files(files)
    newest = max(max(mtime, ctime) for _, _, mtime, ctime, _ in files.stamps())
    if settled(newest, wall_ns()) and _cache_key(files) == key:
        cache.put(key, digest)
    return digest


def _cache_key(files: ModelFiles) -> bytes:
    stamps = [[os.fsencode(path), *numbers] for path, *numbers in files.stamps()]
    return blake3(encode([_SCHEME, stamps])).digest(length=16)


def _hub_cache(environ: Mapping[str, str]) -> str:
    """Where the hub client keeps its downloads, by its own rules."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _expanded(environ[name], environ)
    home = environ.get("HF_HOME", "")
    if not home:
        base = environ.get("XDG_CACHE_HOME", "") or "~/.cache"
        home = os.path.join(base, "huggingface")
    return os.path.join(_expanded(home, environ), "hub")


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    if path.startswith("~/") and environ.get("HOME"):
        return os.path.join(environ["HOME"], path[2:])
    return os.path.expandvars(os.path.expanduser(path))


_token: tuple[int, str] = (0, "")


def _process_token(random_bytes: Callable[[int], bytes]) -> str:
    """The same text for the life of this process; a forked child gets its own."""
    global _token
    if _token[0] != os.getpid():
        _token = (os.getpid(), random_bytes(16).hex())
    return _token[1]
