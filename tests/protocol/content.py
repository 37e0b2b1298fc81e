"""What the simulated replicas store: documents in a prefix tree, whose bytes follow from the key.

A chunk key can have one content only, so any load can be checked without remembering who stored
what (I2), and every process that stores a key stores the same bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from sharedfs_backend.layout import LayoutDescriptor, RealmDescriptor

LAYOUT = LayoutDescriptor(("uint8",), ((1, 2, 4096),), "KV_2LTD", 16)
REALMS = tuple(RealmDescriptor(model, True, "", "", "blake3") for model in ("model-a", "model-b"))
CHUNK_BYTES = (1000, 40_000)


@lru_cache(maxsize=1024)
def content(key: bytes) -> bytes:
    """The only bytes that `key` can stand for."""
    choice = random.Random(key)
    return choice.randbytes(choice.randrange(*CHUNK_BYTES))


def chain(name: str, length: int, parent: bytes = b"") -> list[bytes]:
    """Keys of a run of chunks, each committing to its whole prefix."""
    keys: list[bytes] = []
    for number in range(length):
        parent = blake2b(parent + f"{name}/{number}".encode(), digest_size=16).digest()
        keys.append(parent)
    return keys


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt: which realm it belongs to, and its chunks in prefix order."""

    realm: int
    keys: tuple[bytes, ...]


def documents(choice: random.Random, count: int, chunks_max: int) -> list[Document]:
    """Prompts of which many share the beginning of an earlier one."""
    made: list[Document] = []
    for number in range(count):
        realm = 0 if choice.random() < 0.8 else 1
        length = choice.randint(1, chunks_max)
        earlier = [d for d in made if d.realm == realm]
        base: tuple[bytes, ...] = ()
        if earlier and choice.random() < 0.6:
            base = choice.choice(earlier).keys
            base = base[: choice.randint(0, min(len(base), length - 1))]
        rest = chain(f"{number}", length - len(base), base[-1] if base else b"")
        made.append(Document(realm, (*base, *rest)))
    return made
