"""Parity: whether our tokens are the engine's, and the tier's prefix what engines find. Pure.

A kind of prompt is trusted once an engine's own tokenizer gave the same ids for samples of it, and
until the prompt lengths that engines report with their answers differ from ours. The tier is
trusted until engines again and again report fewer cached tokens than the catalog holds: then the
hashes, the chunk size or the realm are not theirs. What is not trusted is not used, and `reasons`
says why; a later check that agrees restores it.

Not thread-safe. It must not know tokenizers, hashes or sockets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from router.tokens import Kind

WINDOW = 32
"""Reports remembered for each subject."""
LENGTHS_WRONG_MAX = 2
"""More wrong lengths among them end the trust: a length is either right or our mistake."""
SHORTFALLS_MAX = 8
"""More shortfalls among them do: packs are evicted and loads time out now and then."""


_REPORTS = ""
"""In place of an engine's name: what answered requests reported, whoever answered."""


@dataclass(slots=True)
class _Trust:
    """`against`: who disagrees -> in what."""

    compared: bool = False
    against: dict[str, str] = field(default_factory=dict)
    wrong: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def holds(self) -> bool:
        return self.compared and not self.against

    @property
    def reason(self) -> str:
        return next(iter(self.against.values()), "not yet compared with an engine")

    def report(self, is_wrong: bool, wrong_max: int, reason: str) -> None:
        self.wrong.append(is_wrong)
        if sum(self.wrong) > wrong_max:
            self.against[_REPORTS] = reason
            self.wrong.clear()


class Parity:
    """See the module."""

    def __init__(self) -> None:
        self._kinds = {kind: _Trust(compared=kind is Kind.IDS) for kind in Kind}
        self._tier = _Trust(compared=True)
        self.lengths_seen = self.lengths_wrong = 0
        self.prefixes_seen = self.prefixes_short = 0

    def trusts(self, kind: Kind) -> bool:
        return self._kinds[kind].holds

    @property
    def trusts_tier(self) -> bool:
        return self._tier.holds

    @property
    def reasons(self) -> dict[str, str]:
        """What is not used, and why."""
        named = {kind.value: trust for kind, trust in self._kinds.items()} | {"tier": self._tier}
        return {name: trust.reason for name, trust in named.items() if not trust.holds}

    def compared(self, kind: Kind, ours: list[int], engine: list[int], where: str) -> None:
        """All samples of a kind, tokenized by us and by the engine at `where`."""
        trust = self._kinds[kind]
        trust.compared = True
        trust.against.pop(_REPORTS, None)  # what else was there to be done about it is done
        if ours == engine:
            trust.against.pop(where, None)
        else:
            difference = _difference(ours, engine)
            trust.against[where] = f"{where} tokenizes a {kind.value} differently: {difference}"

    def forget(self, where: str) -> None:
        """The engine is gone, and with it what it said."""
        for trust in self._kinds.values():
            trust.against.pop(where, None)

    def reported_length(self, kind: Kind, ours: int, engine: int) -> None:
        """An answered request's prompt tokens."""
        trust = self._kinds[kind]
        if trust.holds:
            self.lengths_seen += 1
            self.lengths_wrong += ours != engine
            reason = f"engines report {engine} prompt tokens where ours are {ours}"
            trust.report(ours != engine, LENGTHS_WRONG_MAX, reason)

    def reported_cached(
        self, held_tokens: int, chunk_tokens: int, prompt_tokens: int, cached_tokens: int
    ) -> None:
        """An answered request whose prefix the tier held: what its engine found in any cache.
        One chunk less is right: an engine computes the last token itself."""
        if not self._tier.holds or held_tokens < chunk_tokens:
            return
        short = cached_tokens + chunk_tokens < min(held_tokens, prompt_tokens)
        self.prefixes_seen += 1
        self.prefixes_short += short
        reason = (
            f"engines find less than the catalog holds, last {cached_tokens} of {held_tokens} "
            "tokens: compare hash algorithm, chunk size and model identity"
        )
        self._tier.report(short, SHORTFALLS_MAX, reason)

    def restore_tier(self) -> None:
        """Believe the catalog again: the replicas, or their settings, are new."""
        self._tier = _Trust(compared=True)


def _difference(ours: list[int], engine: list[int]) -> str:
    pairs = zip(ours, engine, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(engine)))
    return f"{len(ours)} ids, theirs {len(engine)}, first difference at {at}"
