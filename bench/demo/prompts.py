"""Prompts as token ids, the same for the same seed on every machine.

Token ids rather than text: their number is exact, and no tokenizer can differ. The generator is a
hash in counter mode, not `random`, whose sequence a library may reseed.

Must not know: engines, replicas.
"""

from __future__ import annotations

import hashlib

FIRST_TOKEN = 4  # Below it lie pad, begin, end and unknown.
VOCABULARY = 4096


def tokens(seed: str, count: int) -> tuple[int, ...]:
    """Returns `count` token ids determined by `seed`; a longer draw extends a shorter one."""
    stream = b"".join(
        hashlib.sha256(f"{seed}/{block}".encode()).digest() for block in range(count // 8 + 1)
    )
    span = VOCABULARY - FIRST_TOKEN
    words = (int.from_bytes(stream[i : i + 4], "big") for i in range(0, 4 * count, 4))
    return tuple(FIRST_TOKEN + word % span for word in words)
