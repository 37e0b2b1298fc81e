"""KV events: follows one vLLM engine's stream of stored and removed blocks (ZeroMQ, msgpack).

Wire, as vLLM 0.32 publishes it: (topic, sequence number as 8 bytes big-endian, msgpack of
[time, [event, ...], rank]); an event is a map with its `type`. A number that was skipped means
events that were lost: they are asked for again at the replay endpoint if there is one, else all
that was known is dropped, since a map that missed a removal promises too much. A number that
starts over means that the engine did.

Only blocks of the GPU and of the first, full-attention group count. Runs on the event loop; the
task that `follow`s owns the sockets. It must not know what residency is used for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types

from router.residency import Residency, ResidencyMap, Stored

log = logging.getLogger(__name__)

MESSAGES_MAX = 10_000
"""Waiting in the socket; more are lost, which shows in the sequence numbers (I9)."""
REPLAY_SECONDS = 5.0
"""Without a word from the replay endpoint for so long the events count as lost."""
END_OF_REPLAY = (1 << 64) - 1
GPU = "GPU"


@dataclass(frozen=True, slots=True)
class Batch:
    """One message."""

    number: int
    payload: bytes


class Follower:
    """The stream's events applied to a map, in order. Pure but for its log; not thread-safe."""

    def __init__(self, on_change: Callable[[Residency], None]) -> None:
        self.map = ResidencyMap()
        self._on_change = on_change
        self._next: int | None = None
        self._last_live = -1
        self.batches = self.gaps = self.malformed = 0

    @property
    def wanted(self) -> int:
        """The number that comes next; 0 before the first."""
        return self._next or 0

    def is_gap(self, batch: Batch) -> bool:
        """Whether something was lost before this message (or before we listened)."""
        return batch.number > self.wanted

    def take(self, batch: Batch, *, replayed: bool = False) -> None:
        """Apply a message. What is missing before it is given up."""
        if not replayed:
            if batch.number <= self._last_live:
                self.lose("the engine started anew")
                self._next = None
            self._last_live = batch.number
        if self._next is not None and batch.number < self._next:
            return  # came twice, as it is and replayed
        if self._next is not None and batch.number > self._next:
            self.gaps += 1
            self.lose(f"events {self._next} to {batch.number - 1} were lost")
        self._next = batch.number + 1
        self.batches += 1
        for event in self._events(batch.payload):
            change = self._apply(event)
            if change is not None:
                self._on_change(change)

    def lose(self, why: str) -> None:
        """What was known is no longer sure."""
        log.info("cached blocks of a replica are unknown: %s", why)
        self._on_change(self.map.clear())

    def _events(self, payload: bytes) -> list[Any]:
        try:
            message = msgpack.unpackb(payload, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException):
            message = None  # TypeError: a list as a map's key
        if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], list):
            self.malformed += 1
            return []
        return message[1]

    def _apply(self, event: Any) -> Residency | None:
        if not isinstance(event, dict):
            self.malformed += 1
            return None
        if event.get("type") == "AllBlocksCleared":
            return self.map.clear()
        if event.get("medium") not in (None, GPU) or event.get("group_idx") not in (None, 0):
            return None
        if event.get("kv_cache_spec_sliding_window") is not None:
            return None
        try:
            if event.get("type") == "BlockRemoved":
                return self.map.removed(event["block_hashes"])
            if event.get("type") == "BlockStored":
                return self.map.stored(_stored(event))
        except (KeyError, TypeError, ValueError, OverflowError):
            self.malformed += 1
        return None


def _stored(event: Mapping[str, Any]) -> Stored:
    return Stored(
        block_hashes=event["block_hashes"],
        parent=event["parent_block_hash"],
        token_ids=event["token_ids"],
        block_tokens=event["block_size"],
        adapter=event.get("lora_name") or "",
        extra_keys=event.get("extra_keys") or (),
    )


async def follow(
    follower: Follower, endpoint: str, replay_endpoint: str | None = None, topic: str = ""
) -> None:
    """Follow the stream at `endpoint` (as tcp://host:5557) until cancelled."""
    from zmq.asyncio import Context
    from zmq.constants import LINGER, RCVHWM, SUB, SUBSCRIBE

    with contextlib.closing(Context.instance().socket(SUB)) as stream:
        stream.set(LINGER, 0)
        stream.set(RCVHWM, MESSAGES_MAX)
        stream.setsockopt(SUBSCRIBE, topic.encode())
        stream.connect(endpoint)
        if replay_endpoint is not None:
            await _replay(follower, replay_endpoint)
        while True:
            frames = await stream.recv_multipart()
            batch = _batch(frames)
            if batch is None:
                follower.malformed += 1
                continue
            if follower.is_gap(batch) and replay_endpoint is not None:
                await _replay(follower, replay_endpoint)
            follower.take(batch)


async def _replay(follower: Follower, endpoint: str) -> None:
    """Take what the engine still has from the wanted number on."""
    async for batch in _replayed(endpoint, follower.wanted):
        follower.take(batch, replayed=True)


async def _replayed(endpoint: str, first: int) -> AsyncIterator[Batch]:
    from zmq.asyncio import Context
    from zmq.constants import DEALER, LINGER

    with contextlib.closing(Context.instance().socket(DEALER)) as socket:
        socket.set(LINGER, 0)
        socket.connect(endpoint)
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        while await socket.poll(REPLAY_SECONDS * 1000):
            frames = await socket.recv_multipart()
            batch = _batch(frames[1:])
            if batch is None or batch.number == END_OF_REPLAY:
                return
            yield batch


def _batch(frames: list[bytes]) -> Batch | None:
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return Batch(int.from_bytes(frames[1], "big"), frames[2])
