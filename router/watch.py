"""Watch: asks every replica how it is: is it well, how busy, which models.

One task for each member: a probe every `health_seconds`, its metrics every `scrape_seconds`, its
models when it became well and every `MODELS_SECONDS`. What comes back goes to the members and to
the fleet's `observe`; a probe can never change a count of requests in flight. An answer below 500
is a replica that is well: one without the path is there all the same.

Effects only. Of the event loop's thread; no task outlives `stop`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router.fetch import FetchError, fetch
from router.fleet import Fleet
from router.members import Member, Members
from router.outcome import Observation
from router.replicas import Replica
from router.scrape import scraped

log = logging.getLogger(__name__)

MODELS_SECONDS = 30.0
MODELS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often, and how long an answer may take."""

    health_seconds: float = 1.0
    health_deadline_seconds: float = 5.0
    scrape_seconds: float = 1.0
    health_path: str = "/health"


@dataclass(slots=True)
class _Due:
    """When one replica is looked at next."""

    probe_at: float
    scrape_at: float
    models_at: float


class Watch:
    def __init__(
        self,
        members: Members,
        fleet: Fleet,
        rhythm: Rhythm,
        *,
        now: Callable[[], float],
        replica_key: str | None = None,
        on_silent: Callable[[Replica, str], None] | None = None,
    ) -> None:
        """`on_silent` hears of each probe without an answer from a replica that is down, and
        why. One that answers it is unwell may still finish what it has."""
        self._members = members
        self._fleet = fleet
        self._rhythm = rhythm
        self._now = now
        self._key = replica_key
        self._on_silent = on_silent
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refresh: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """One task for each member there is now, none for any other."""
        for name in [name for name in self._tasks if self._members.get(name) is None]:
            self._tasks.pop(name).cancel()
        for member in self._members:
            name = member.replica.id
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._watch(name), name=f"watch {name}")

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        if self._refresh is not None:
            tasks.append(self._refresh)
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh_models(self) -> None:
        """Asks everybody that takes requests for its models, now. Who comes meanwhile waits for the
        same answers: clients cannot make a replica be asked more than once at a time."""
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.create_task(self._ask_for_models(), name="models")
        await asyncio.shield(self._refresh)  # who leaves must not end it for the others

    async def _ask_for_models(self) -> None:
        await asyncio.gather(*(self._models(member.replica) for member in self._members.ready()))

    async def _watch(self, name: str) -> None:
        now = self._now()
        due = _Due(now, now, now)
        while (member := self._members.get(name)) is not None:
            try:
                await self._look(member, due)
            except Exception:  # a mistake of ours: unwatched, a replica would stay as it is
                log.exception("looking at %s failed", name)
                later = self._now() + MODELS_SECONDS
                due = _Due(self._now() + self._rhythm.health_seconds, later, later)
            next_at = due.probe_at if member.trouble else min(due.probe_at, due.scrape_at)
            await asyncio.sleep(max(0.01, next_at - self._now()))

    async def _look(self, member: Member, due: _Due) -> None:
        now = self._now()
        if now >= due.probe_at:
            await self._probe(member.replica)
            due.probe_at = self._now() + self._rhythm.health_seconds
        is_well = not member.trouble
        if is_well and now >= due.scrape_at:
            await self._scrape(member.replica)
            due.scrape_at = self._now() + self._rhythm.scrape_seconds
        if is_well and now >= due.models_at:
            await self._models(member.replica)
            due.models_at = self._now() + MODELS_SECONDS

    async def _probe(self, replica: Replica) -> None:
        is_silent = False
        try:
            answer = await fetch(
                replica,
                self._rhythm.health_path,
                deadline_seconds=self._rhythm.health_deadline_seconds,
                key=self._key,
            )
            trouble = f"its health check says {answer.status}" if answer.status >= 500 else ""
        except FetchError as error:
            trouble, is_silent = f"its health check failed: {error}", True
        self._members.probed(replica.id, trouble, self._now())
        if is_silent and self._on_silent is not None and self._members.is_down(replica.id):
            self._on_silent(replica, trouble)

    async def _scrape(self, replica: Replica) -> None:
        try:
            answer = await self._get(replica, "/metrics")
        except FetchError:
            return  # the probe decides what that means
        seen = scraped(answer)
        self._fleet.observe(
            replica.id,
            Observation(
                waiting=seen.waiting,
                running=seen.running,
                kv_usage=seen.kv_usage,
                gpu_blocks=seen.gpu_blocks,
                block_tokens=seen.block_tokens,
                external_hit_tokens=seen.external_hit_tokens,
                external_query_tokens=seen.external_query_tokens,
            ),
            self._now(),
        )

    async def _models(self, replica: Replica) -> None:
        try:
            answer = json.loads(await self._get(replica, "/v1/models"))
            entries = answer["data"]
            models = tuple(entry for entry in entries if _is_model(entry))
        except (FetchError, ValueError, KeyError, TypeError, RecursionError):
            return  # what it said before still stands
        self._members.serves(replica.id, models[:MODELS_MAX])

    async def _get(self, replica: Replica, path: str) -> bytes:
        answer = await fetch(
            replica,
            path,
            deadline_seconds=self._rhythm.health_deadline_seconds,
            key=self._key,
        )
        if answer.status != 200:
            raise FetchError(f"{path} says {answer.status}")
        return answer.body


def _is_model(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("id"), str)
