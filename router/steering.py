"""Steering: asking an engine not to load a prefix that is quicker to compute.

A request may carry `kv_transfer_params`, which vLLM hands to its KV connector. LMCache 0.5.6 reads
of them what bounds or skips a *store* (`lmcache.skip_save`, `lmcache.max_offload_tokens`) and what
reports hits (`cached_token_stats`); its connectors look up and load whatever the tier holds without
asking the request, and vLLM 0.32 has no field of its own that leaves out a load and keeps its own
cache. So `PARAMETERS` is empty: the router predicts what is loaded and cannot prevent it. A site
whose connector takes a parameter names it; `probe` finds out for each replica whether it is
honoured, and `answered` watches that it stays so. What is not proven is not used.

Bodies are spliced, not written anew. It must not know costs, sockets or the tier.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from router.asks import Usage

PARAMETERS: Mapping[str, Any] = {}
"""What asks a released LMCache not to load. None does, up to 0.5.6."""
FIELD = "kv_transfer_params"
PROBE_CHUNKS = 2
"""Chunks of a probe's prompts: the smallest whose load cannot be taken for a rounding."""
PROBE_ID_MIN, PROBE_IDS = 1000, 2000
"""Token ids of probes: every vocabulary has them, and special tokens lie outside."""
DISREGARDED_MAX = 3
"""Of so many answers in a row that load all the same, the last ends the trust."""

Complete = Callable[[Mapping[str, Any]], Awaitable[Usage | None]]
"""Send one replica a completion with these fields: its usage, or None."""


class Verdict(enum.Enum):
    NO_MEANS = "no parameter is known that asks this version not to load"
    UNTRIED = "not yet tried"
    UNPROVEN = "the replica does not report cached tokens, or loads nothing when it may"
    IGNORED = "the replica loads although it is asked not to"
    HONOURED = "honoured"


@dataclass(slots=True)
class _Replica:
    verdict: Verdict = Verdict.UNTRIED
    disregarded: int = 0


@dataclass(slots=True)
class Steering:
    """What each replica makes of the parameters. Event loop's thread only."""

    parameters: Mapping[str, Any] = field(default_factory=lambda: PARAMETERS)
    _replicas: dict[str, _Replica] = field(default_factory=dict)

    def verdict(self, replica: str) -> Verdict:
        if not self.parameters:
            return Verdict.NO_MEANS
        return self._replicas.get(replica, _Replica()).verdict

    def can(self, replica: str) -> bool:
        """Whether asking this replica not to load is known to help."""
        return self.verdict(replica) is Verdict.HONOURED

    def forget(self, replica: str) -> None:
        """It left, or started anew."""
        self._replicas.pop(replica, None)

    def steered(self, body: Sequence[bytes], fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        """The request's body with the parameters in it; what the client set itself stays."""
        return with_field(body, fields, FIELD, self.parameters)

    async def probe(
        self,
        replica: str,
        other: Complete,
        own: Complete,
        chunk_tokens: int,
        random: Random,
        settle: Callable[[], Awaitable[None]],
    ) -> Verdict:
        """Find out. `other`, another replica, computes two prompts that nobody sent before;
        `settle` waits until the tier shows them; `own`, this replica, is then sent one of them as
        it is and one with the parameters. Costs four short prefills."""
        if not self.parameters:
            return Verdict.NO_MEANS
        prompts = [self._prompt(chunk_tokens, random) for _ in range(2)]
        for prompt in prompts:
            await other(prompt)
        await settle()
        plain = await own(prompts[0])
        steered = await own({**prompts[1], FIELD: dict(self.parameters)})
        verdict = judge(plain, steered, chunk_tokens)
        self._replicas[replica] = _Replica(verdict)
        return verdict

    @staticmethod
    def _prompt(chunk_tokens: int, random: Random) -> dict[str, Any]:
        count = PROBE_CHUNKS * chunk_tokens + 1
        ids = [PROBE_ID_MIN + random.randrange(PROBE_IDS) for _ in range(count)]
        return {"prompt": ids, "max_tokens": 1, "temperature": 0}

    def answered(self, replica: str, usage: Usage, local_tokens: int, chunk_tokens: int) -> None:
        """A steered request's answer; `local_tokens`: what the replica was thought to hold."""
        known = self._replicas.get(replica)
        if known is None or known.verdict is not Verdict.HONOURED or usage.cached_tokens is None:
            return
        is_loaded = usage.cached_tokens >= local_tokens + chunk_tokens
        known.disregarded = known.disregarded + 1 if is_loaded else 0
        if known.disregarded >= DISREGARDED_MAX:
            known.verdict = Verdict.IGNORED


def judge(plain: Usage | None, steered: Usage | None, chunk_tokens: int) -> Verdict:
    """What two answers prove: the first may load, the second should not."""
    if plain is None or steered is None:
        return Verdict.UNPROVEN
    loaded, left = plain.cached_tokens, steered.cached_tokens
    if loaded is None or left is None or loaded < chunk_tokens:
        return Verdict.UNPROVEN
    return Verdict.HONOURED if left < chunk_tokens else Verdict.IGNORED


def with_field(
    body: Sequence[bytes], fields: Mapping[str, Any], name: str, values: Mapping[str, Any]
) -> tuple[bytes, ...]:
    """A JSON object's bytes with one more object in it; `fields` is what they decode to. Only
    where the client sent that object too, or not UTF-8 alone, is the body written anew."""
    there = fields.get(name)
    if there is not None:
        merged = {**values, **there} if isinstance(there, Mapping) else there
        return (json.dumps({**fields, name: merged}).encode(),)
    first = next((at for at, piece in enumerate(body) if piece.lstrip()), None)
    if first is None or name in fields:
        return tuple(body)
    piece = body[first]
    begin = piece.lstrip()[:2]
    if not begin.startswith(b"{") or len(begin) < 2 or begin.endswith(b"\0"):
        # A byte order mark, or UTF-16 and UTF-32, whose ASCII has zero bytes.
        return (json.dumps({**fields, name: values}).encode(),)
    at = piece.index(b"{") + 1
    insert = json.dumps({name: values})[1:-1].encode() + (b"," if fields else b"")
    return (*body[:first], piece[:at] + insert, piece[at:], *body[first + 1 :])
