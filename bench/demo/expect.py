"""How many prompt tokens a replica must reload, worked out from what the fleet has done so far.

For a prompt another replica stored in full this is floor((n-1)/256)*256 where n is no multiple of
256, and n-1 where it is: LMCache stores whole chunks of the prompt, and an engine computes at least
the last token itself. For a prompt shared in part it is the whole chunks of the longest shared
prefix, less what the engine's own prefix cache (whole blocks of 128 tokens) covers already.

Pure. Must not know: engines, HTTP, the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Expected:
    """Where the KV of one prompt's tokens must come from, and how many chunks will be new."""

    local_tokens: int
    reloaded_tokens: int
    computed_tokens: int
    chunks_reloaded: int
    chunks_new: int


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Returns how many leading tokens two sequences share."""
    limit = min(len(one), len(other))
    return next((i for i in range(limit) if one[i] != other[i]), limit)


class Ledger:
    """What each replica has computed and what the fleet has stored. Not thread-safe.

    Assumes that neither an engine's own cache nor the namespace evicts: the demo stays far below
    both. `salt` separates both kinds of cache, as it does in the engines.
    """

    def __init__(self, chunk_tokens: int = 256, block_tokens: int = 128) -> None:
        self.chunk_tokens = chunk_tokens
        self.block_tokens = block_tokens
        self._computed: dict[tuple[str, str | None], list[Tokens]] = defaultdict(list)
        self._stored: dict[str | None, list[Tokens]] = defaultdict(list)

    def expect(self, replica: str, prompt: Tokens, salt: str | None = None) -> Expected:
        """Returns what must happen when that replica gets that prompt now."""
        usable = len(prompt) - 1
        local = max((common_prefix(prompt, s) for s in self._computed[replica, salt]), default=0)
        local = min(local, usable) // self.block_tokens * self.block_tokens
        stored = self._stored_tokens(prompt, salt)
        reloaded = max(0, min(stored, usable) - local)
        return Expected(
            local_tokens=local,
            reloaded_tokens=reloaded,
            computed_tokens=len(prompt) - local - reloaded,
            chunks_reloaded=-(-reloaded // self.chunk_tokens),
            chunks_new=(len(prompt) - stored) // self.chunk_tokens,
        )

    def record(self, replica: str, prompt: Tokens, output: Tokens, salt: str | None = None) -> None:
        """Notes a finished request: the KV of all but the last token is in that engine now."""
        self._computed[replica, salt].append((*prompt, *output)[:-1])
        self._stored[salt].append(tuple(prompt))

    def _stored_tokens(self, prompt: Tokens, salt: str | None) -> int:
        """Returns the tokens of the whole chunks at the prompt's head that the fleet stored."""
        shared = max((common_prefix(prompt, s) for s in self._stored[salt]), default=0)
        return shared // self.chunk_tokens * self.chunk_tokens
