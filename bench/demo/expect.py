"""How many prompt tokens a replica must reload, worked out from what the fleet has done so far.

For a prompt another replica stored in full this is floor((n-1)/256)*256 where n is no multiple of
256, and n-1 where it is: LMCache stores whole chunks of the prompt, and an engine computes at least
the last token itself. For a prompt shared in part it is the whole chunks of the longest shared
prefix, less what the engine's own prefix cache (whole blocks of 128 tokens) covers already. What is
read from the namespace is more: LMCache asks for every chunk of that prefix which its own memory
does not hold, and by default it holds what it stored itself, not what it loaded.

Pure. Must not know: engines, HTTP, the store.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Expected:
    """Where the KV of one prompt's tokens must come from, and what is read and stored for it."""

    local_tokens: int
    reloaded_tokens: int
    computed_tokens: int
    chunks_loaded: int
    chunks_new: int


def chunk_names(tokens: Tokens, chunk_tokens: int, salt: str | None) -> list[bytes]:
    """Returns a name for each whole chunk at the head of `tokens`; it stands for all before it."""
    running = hashlib.sha256(repr(salt).encode())
    names = []
    for end in range(chunk_tokens, len(tokens) + 1, chunk_tokens):
        running.update(array("I", tokens[end - chunk_tokens : end]).tobytes())
        names.append(running.digest())
    return names


class Ledger:
    """What each replica has computed and what the fleet has stored. Not thread-safe.

    Assumes that no cache evicts: the demo stays far below the limits of all three. `salt`
    separates them, as it does in the engines.
    """

    def __init__(self, chunk_tokens: int = 256, block_tokens: int = 128) -> None:
        self.chunk_tokens = chunk_tokens
        self.block_tokens = block_tokens
        self._blocks: dict[str, set[bytes]] = defaultdict(set)  # In each engine's prefix cache.
        self._held: dict[str, set[bytes]] = defaultdict(set)  # In each LMCache server's memory.
        self._stored: set[bytes] = set()  # In the namespace.

    def expect(self, replica: str, prompt: Tokens, salt: str | None = None) -> Expected:
        """Returns what must happen when that replica gets that prompt now."""
        usable = len(prompt) - 1
        blocks = chunk_names(prompt[:usable], self.block_tokens, salt)
        local = leading(blocks, self._blocks[replica]) * self.block_tokens
        chunks = chunk_names(prompt, self.chunk_tokens, salt)
        stored = leading(chunks, self._stored)
        reloaded = max(0, min(stored * self.chunk_tokens, usable) - local)
        return Expected(
            local_tokens=local,
            reloaded_tokens=reloaded,
            computed_tokens=len(prompt) - local - reloaded,
            chunks_loaded=len(set(chunks[:stored]) - self._held[replica]),
            chunks_new=len(chunks) - stored,
        )

    def record(self, replica: str, prompt: Tokens, output: Tokens, salt: str | None = None) -> None:
        """Notes a finished request: the KV of all but the last token is in that engine now."""
        computed = [*prompt, *output][:-1]
        self._blocks[replica].update(chunk_names(computed, self.block_tokens, salt))
        new = set(chunk_names(prompt, self.chunk_tokens, salt)) - self._stored
        self._held[replica] |= new
        self._stored |= new


def leading(names: Sequence[bytes], known: set[bytes]) -> int:
    """Returns how many names from the first on are known."""
    return next((i for i, name in enumerate(names) if name not in known), len(names))
