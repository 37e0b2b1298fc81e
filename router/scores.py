"""Scores: what happened to requests, told to everybody who counts.

One call for each event: the fleet learns, the tally counts, the history remembers for the page.
Names of series stand in `metrics`, where each is explained. Also learned here: how many tokens a
byte of a prompt makes, from replicas that report theirs. Times are arguments, of the monotonic
clock; `wall` is only for what people read. Of the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from router.asks import Ask, Usage
from router.fleet import Fleet
from router.history import SOURCES, Bucket, History, Row
from router.outcome import Decision
from router.prefix import TOKENS_PER_BYTE
from router.tally import Tally

SOURCE_SERIES = tuple(("prompt_tokens_total", source) for source in SOURCES)
LEARNING_SHARE = 0.02
TOKENS_PER_BYTE_RANGE = (0.02, 1.0)  # base64 in a prompt is one end, Han characters the other


class Scores:
    def __init__(
        self, fleet: Fleet, tally: Tally, history: History, *, wall: Callable[[], float]
    ) -> None:
        self.fleet = fleet
        self.tally = tally
        self.history = history
        self.tokens_per_byte = TOKENS_PER_BYTE
        self._wall = wall
        self._queue = tally.histogram(("estimate_seconds", "queue"))
        self._local = tally.histogram(("estimate_seconds", "local"))
        self._shared = tally.histogram(("estimate_seconds", "shared"))
        self._compute = tally.histogram(("estimate_seconds", "compute"))
        self._error = tally.histogram(("estimate_error_seconds",))

    def decided(self, ask: Ask, decision: Decision, kind: str, reason: bytes) -> Row:
        """The decision's row for the page; what comes of it may be added to it."""
        costs = decision.costs
        self._queue.add(costs.queue_s)
        self._local.add(costs.local_s)
        self._shared.add(costs.shared_s)
        self._compute.add(costs.compute_s)
        wall = self._wall()
        bucket = self.history.at(wall)
        bucket.requests += 1
        known = decision.local_tokens + decision.dram_tokens + decision.shared_tokens
        if known:
            self._expected(bucket, 0, decision.local_tokens)
            self._expected(bucket, 1, decision.dram_tokens)
            self._expected(bucket, 2, decision.shared_tokens)
        self._expected(bucket, 3, ask.prompt_tokens - known)
        row = Row(wall, kind, ask.model, ask.prompt_tokens, known, decision.replica, reason)
        self.history.decided(row)
        return row

    def _expected(self, bucket: Bucket, place: int, tokens: int) -> None:
        if tokens > 0:
            bucket.tokens[place] += tokens
            self.tally.count(SOURCE_SERIES[place], tokens)

    def first_token(self, decision: Decision, ttft_seconds: float, answer_seconds: float) -> None:
        """`ttft_seconds` since the request was here, `answer_seconds` since it was sent on."""
        self.tally.observe(("ttft_seconds", decision.replica), ttft_seconds)
        error = abs(answer_seconds - decision.costs.total_s)
        self._error.add(error)
        self.history.at(self._wall()).ttft.add(ttft_seconds)

    def ended(self, ask: Ask, decision: Decision, usage: Usage | None, now: float) -> None:
        self.fleet.ended(decision.ticket, now, usage)
        if usage is not None and usage.prompt_tokens:
            self._learn(ask, usage.prompt_tokens)
            self.tally.count(("usage_prompt_tokens_total",), usage.prompt_tokens)
            self.tally.count(("usage_completion_tokens_total",), usage.completion_tokens or 0)

    def answered(self, kind: str, status: int) -> None:
        self.tally.count(("requests_total", kind, str(status)))

    def retried(self, replica: str, why: str) -> None:
        self.tally.count(("retries_total", replica, why))

    def cut(self, replica: str, outcome: str) -> None:
        self.tally.count(("cut_total", replica, outcome))

    def refused(self, why: str) -> None:
        self.tally.count(("refused_total", why))
        self.history.at(self._wall()).refused += 1

    def _learn(self, ask: Ask, prompt_tokens: int) -> None:
        """Moves tokens per byte towards what a replica counted."""
        if len(ask.blocks) < 2 or not ask.prompt_tokens:
            return  # the chat template's own tokens would count for much
        ratio = prompt_tokens / ask.prompt_tokens
        if 0.2 <= ratio <= 5.0:  # images and audio have tokens without bytes
            low, high = TOKENS_PER_BYTE_RANGE
            moved = self.tokens_per_byte * (1 + LEARNING_SHARE * (ratio - 1))
            self.tokens_per_byte = min(max(moved, low), high)
