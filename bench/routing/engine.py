"""Engine: a simulated replica. What is true, as opposed to what the router believes.

Prefills run one at a time, in the order sent, each once its loads are there; running decodes slow
them. GPU and host memory are LRUs of blocks; since prefills are in order, what a request will find
is settled when it comes. Blocks can be loaded elsewhere some time after the prefill that made them.

It shares no code with the router but the formula of a prefill's cost. Time is the caller's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from bench.routing.traces import BLOCK_TOKENS, Request
from sharedfs_backend.economics import Prefill

PREFILL = Prefill(10e-3, 0.1e-3, 2e-9)


@dataclass(frozen=True, slots=True)
class World:
    """The truth, in seconds, bytes and tokens."""

    prefill: Prefill = PREFILL
    decode_slowdown: float = 0.01
    output_token_seconds: float = 25e-3
    kv_bytes_per_token: float = 320 * 1024.0
    host_bytes_per_second: float = 200e9
    gpu_blocks: int = 800
    host_blocks: int = 1600
    shared_bytes_per_second: float = 5e9
    """For each replica."""
    total_bytes_per_second: float = float("inf")
    """For all together, one load after the other."""
    shared_latency_seconds: float = 10e-3
    visibility_seconds: float = 2.0
    has_shared_tier: bool = True
    is_always_loading: bool = False
    """Engines load whatever is there, whatever the router says."""


class Lru:
    """The most recently used blocks of a cache."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._blocks_max = blocks_max

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def use(self, blocks: tuple[int, ...]) -> None:
        """The end first, so that it goes first."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)


class Tier:
    """The shared tier: since when each block can be loaded, and when the file system is free."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[int, float] = {}
        self._free_at = 0.0

    def publish(self, blocks: tuple[int, ...], now: float) -> None:
        """A prefill is done."""
        if self._world.has_shared_tier:
            for block in blocks:
                self._since.setdefault(block, now + self._world.visibility_seconds)

    def depth(self, blocks: tuple[int, ...], start: int, now: float) -> int:
        """Leading blocks that can be loaded, given that the first `start` are not wanted."""
        depth = start
        while depth < len(blocks) and self._since.get(blocks[depth], float("inf")) <= now:
            depth += 1
        return depth

    def transfer(self, size_bytes: float, starts_at: float) -> float:
        """When a transfer that a replica could start then is done."""
        ends_at = starts_at + size_bytes / self._world.shared_bytes_per_second
        if self._world.total_bytes_per_second != float("inf"):
            self._free_at = max(self._free_at, starts_at)
            self._free_at += size_bytes / self._world.total_bytes_per_second
            ends_at = max(ends_at, self._free_at)
        return ends_at


@dataclass(slots=True, eq=False)
class Work:
    """One request on one engine."""

    request: Request
    gpu_tokens: int = 0
    host_tokens: int = 0
    shared_tokens: int = 0
    ready_at: float = 0.0
    first_at: float = 0.0

    @property
    def cached_tokens(self) -> int:
        return self.gpu_tokens + self.host_tokens + self.shared_tokens

    @property
    def computed_tokens(self) -> int:
        return self.request.prompt_tokens - self.cached_tokens


class Engine:
    """One replica. `waiting` is in order; its first may be running (`is_busy`)."""

    def __init__(self, world: World, tier: Tier) -> None:
        self._world = world
        self._tier = tier
        self._gpu = Lru(world.gpu_blocks)
        self._host = Lru(world.host_blocks)
        self._io_free_at = 0.0
        self.waiting: deque[Work] = deque()
        self.is_busy = False
        self.decodes = 0
        self.live_tokens = 0
        self.busy_seconds = 0.0

    def take(self, request: Request, may_load: bool, now: float) -> Work:
        """A request arrives; what it will find is settled."""
        world, blocks = self._world, request.blocks
        gpu = 0
        while gpu < len(blocks) and blocks[gpu] in self._gpu:
            gpu += 1
        local = gpu
        while local < len(blocks) and (blocks[local] in self._host or blocks[local] in self._gpu):
            local += 1
        depth = local
        if may_load or world.is_always_loading:
            depth = self._tier.depth(blocks, local, now)
        self._gpu.use(blocks)
        self._host.use(blocks)

        work = Work(request)
        most = request.prompt_tokens - 1
        work.gpu_tokens = min(gpu * BLOCK_TOKENS, most)
        work.host_tokens = min(local * BLOCK_TOKENS, most) - work.gpu_tokens
        work.shared_tokens = min(depth * BLOCK_TOKENS, most) - work.gpu_tokens - work.host_tokens
        size = work.host_tokens * world.kv_bytes_per_token
        work.ready_at = now + size / world.host_bytes_per_second
        if work.shared_tokens:
            begins_at = max(self._io_free_at, now) + world.shared_latency_seconds
            size = work.shared_tokens * world.kv_bytes_per_token
            self._io_free_at = self._tier.transfer(size, begins_at)
            work.ready_at = max(work.ready_at, self._io_free_at)
        self.waiting.append(work)
        self.live_tokens += request.prompt_tokens
        return work

    def start(self) -> float:
        """Begins the first waiting request's prefill; how long it takes."""
        self.is_busy = True
        work = self.waiting[0]
        slow = 1.0 + self._world.decode_slowdown * self.decodes
        seconds = slow * self._world.prefill.seconds(
            work.computed_tokens, work.request.prompt_tokens
        )
        self.busy_seconds += seconds
        return seconds

    def first(self, now: float) -> Work:
        """Its first token is out; it decodes from here."""
        self.is_busy = False
        work = self.waiting.popleft()
        work.first_at = now
        self.decodes += 1
        self._tier.publish(work.request.blocks, now)
        return work

    def end(self, work: Work) -> None:
        """Its last token is out."""
        self.decodes -= 1
        self.live_tokens -= work.request.prompt_tokens

    @property
    def kv_usage(self) -> float:
        return min(1.0, self.live_tokens / (self._world.gpu_blocks * BLOCK_TOKENS))
