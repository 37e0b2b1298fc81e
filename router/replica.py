"""Replica: all the router keeps about one replica. State of one event loop.

Its load, its learned costs, what it is thought to hold (`gpu`, `host`, and `memory` for the policy
that remembers where everything went), and how well that was borne out. Exact residency, where the
engine tells of every block it gains and loses, replaces the GPU's shadow. Bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from router.constants import Constants
from router.learning import Speed, Trust
from router.load import Load
from router.outcome import Observation, ReplicaState
from router.policies import Standing
from router.shadow import Holder, shared_run
from router.tickets import Ticket
from sharedfs_backend.economics import Loading, Prefill

EXACT_BLOCKS_MAX = 1 << 20
"""Of one replica; past it the engine's events are no longer believed complete."""
NO_TICKETS: frozenset[Ticket] = frozenset()
GPU_TOKENS_MAX = float(1 << 26)
"""What metrics may say a GPU holds: our memory of it is bounded by that, and no GPU holds more."""
KNOWN_PREFILLS = 20
PROBE_SECONDS = 120.0
PROBE_TOKENS_MIN = 256
PROBE_TOKENS_MAX = 2048
PROBES_FIRST = 3
"""A tier thought too slow to load from is never measured again: now and then an idle replica loads
a little all the same, so that the estimate can recover. The first few at once, as what learning
starts from may be far off."""
SHRINK = 0.9
GROW = 1.002
LEAST_SHARE = 0.05
"""How a shadow's size follows reports: a block missing shrinks it, one found lets it grow."""


class Replica:
    """One replica; `share` scales what its caches are told to be able to hold."""

    def __init__(self, name: str, constants: Constants) -> None:
        self.name = name
        self.place = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        self.state = ReplicaState.READY
        self.load = Load()
        self._before_trial: frozenset[Ticket] = NO_TICKETS
        """Without a first token since before it half-opened: they may wait for good."""
        self.trust = Trust()
        self.gpu = Holder(0)
        self.host = Holder(0)
        self.memory = Holder(0)
        self.exact: set[int] | None = None
        self.share = 1.0
        self._sized = (0.0, 0.0, 0.0, 0.0, 0.0)
        self.gpu_tokens = float(constants.gpu_tokens)
        self.host_tokens = float(constants.host_tokens)
        self.has_known_gpu = False
        self.external_hit_rate: float | None = None
        self._probe_at = float("-inf")
        self.speed = self._speed(constants, constants.kv_bytes_per_token)

    @staticmethod
    def _speed(constants: Constants, kv_bytes_per_token: float) -> Speed:
        return Speed(
            Prefill(constants.fixed_seconds, constants.token_seconds, constants.pair_seconds),
            Loading(
                constants.shared_latency_seconds,
                constants.shared_bytes_per_second,
                kv_bytes_per_token,
            ),
        )

    def has_kv_of(self, constants: Constants, bytes_per_token: float) -> None:
        """Its KV has another size than thought: what was learned starts anew."""
        if bytes_per_token != self.speed.loading.bytes_per_token:
            self.speed = self._speed(constants, bytes_per_token)

    def is_known(self) -> bool:
        """Whether enough prefills were seen to say something of others."""
        return self.speed.prefills >= KNOWN_PREFILLS

    def goes(self, state: ReplicaState) -> None:
        """Into another state."""
        is_trial = state is ReplicaState.HALF_OPEN
        if not is_trial:
            self._before_trial = NO_TICKETS
        elif self.state is not state:
            self._before_trial = frozenset(self.load.pending)
        self.state = state

    def takes_requests(self) -> bool:
        """Whether it may be chosen; half open it gets one at a time. What was sent there before
        does not count: streams may go on for minutes, and what it forgot is never answered. Nor
        does what other processes send, whose breakers may be closed: there would always be some."""
        if self.state is ReplicaState.HALF_OPEN:
            before = self._before_trial
            return not any(each.is_ours and each not in before for each in self.load.pending)
        return self.state is ReplicaState.READY

    def standing(self, matched_tokens: float, now: float) -> Standing:
        """What policies see of it."""
        load = self.load
        return Standing(
            self.name,
            self.place,
            load.in_flight,
            load.waiting(now),
            load.kv_usage,
            matched_tokens,
            self.memory.used,
        )

    def may_probe(self, now: float) -> bool:
        """Whether a load of the tier may be tried although computing seems quicker."""
        return now >= self._probe_at and not self.load.pending and not self.load.io_wait_s(now)

    def probes(self, now: float) -> None:
        """One is on its way."""
        is_new = self.speed.loads < PROBES_FIRST
        self._probe_at = now + (1.0 if is_new else PROBE_SECONDS)

    def size(self, block_tokens: float, memory_tokens: float) -> None:
        """Capacities in blocks of this size."""
        sized = self.share, block_tokens, memory_tokens, self.gpu_tokens, self.host_tokens
        if sized == self._sized:
            return
        self._sized = sized
        share = self.share / block_tokens
        self.gpu.capacity = int(self.gpu_tokens * share)
        self.host.capacity = int(self.host_tokens * share)
        self.memory.capacity = int(memory_tokens / block_tokens)

    def observe(self, seen: Observation, now: float) -> None:
        """What its metrics said."""
        self.load.observe(seen, now)
        if seen.gpu_blocks and seen.block_tokens and not self.has_known_gpu:
            self.gpu_tokens = min(float(seen.gpu_blocks * seen.block_tokens), GPU_TOKENS_MAX)
        if seen.external_query_tokens and seen.external_hit_tokens is not None:
            self.external_hit_rate = seen.external_hit_tokens / seen.external_query_tokens

    def reported(self, predicted: float, reported: float, block_tokens: float) -> None:
        """Cached tokens of an answered request. Less than predicted by more than a block: the
        engine forgets sooner than its shadow."""
        self.trust.saw(predicted, reported)
        if predicted - reported > block_tokens + 0.02 * predicted:
            self.share = max(LEAST_SHARE, self.share * SHRINK)
        elif predicted > 0:
            self.share = min(1.0, self.share * GROW)

    def resident(self, stored: Iterable[int], removed: Iterable[int], cleared: bool) -> None:
        """What its GPU gained and lost."""
        if self.exact is None or cleared:
            self.exact = set()
        self.exact.update(stored)
        self.exact.difference_update(removed)
        if len(self.exact) > EXACT_BLOCKS_MAX:
            self.exact = None

    def exact_depth(self, blocks: Sequence[int]) -> int:
        """Leading blocks its GPU holds by its own account, or will when what it was sent is done.

        Engines free a prefix's end first, so what is held of a chain is a prefix of it.
        """
        assert self.exact is not None
        low, high = 0, len(blocks) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if blocks[middle - 1] in self.exact:
                low = middle
            else:
                high = middle
        for ticket in self.load.pending:
            low = max(low, shared_run(ticket.blocks, blocks) if ticket.blocks else 0)
        return low
