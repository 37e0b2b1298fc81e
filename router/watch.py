"""Watch: asks every replica how it is: is it well, how busy, which models.

Of each member a probe every `health_seconds`, its metrics every `scrape_seconds` and its models
every `MODELS_SECONDS`; metrics and models from a good probe on and until there is trouble. Each
question is a task of its own, so none waits for another's answer. What comes back goes to the
members and to the fleet's `observe`; a probe can never change a count of requests in flight. An
answer below 500 is a replica that is well: one without the path is there all the same.

Effects only. Of the event loop's thread; no task outlives `stop`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from router.answers import PROBER, prober
from router.breaker import FAILURES_MAX
from router.fetch import FetchError, fetch
from router.fleet import Fleet
from router.members import Members
from router.outcome import Observation
from router.relay.exchange import Where
from router.relay.resolver import Resolver
from router.replicas import Replica
from router.scrape import scraped

log = logging.getLogger(__name__)

MODELS_SECONDS = 30.0
MODELS_MAX = 4096
MODELS_GRACE_SECONDS = 0.25
"""Somebody waits for the list: from the first replica's answer until the slow are left out."""
MODELS_WAIT_SECONDS = 1.0
"""All together, once a replica has answered."""

Question = Callable[[Replica], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often, and how long an answer may take."""

    health_seconds: float = 1.0
    health_deadline_seconds: float = 5.0
    scrape_seconds: float = 1.0
    health_path: str = "/health"


class Watch:
    def __init__(
        self,
        members: Members,
        fleet: Fleet,
        rhythm: Rhythm,
        *,
        now: Callable[[], float],
        resolver: Resolver,
        replica_key: str | None = None,
        on_silent: Callable[[Replica, str], None] | None = None,
        is_awaited: Callable[[Replica], bool] | None = None,
        identity: str = "",
    ) -> None:
        """`on_silent` hears of each probe without an answer from a replica that is down, and
        why. One that answers it is unwell may still finish what it has. A replica that left is
        probed for as long as it `is_awaited`: requests are under way there. Who answers with
        `identity` is this router, which knows its probes by their head wherever they lead: a
        request sent there would come back without end."""
        self._members = members
        self._fleet = fleet
        self._rhythm = rhythm
        self._now = now
        self._resolver = resolver
        self._key = replica_key
        self._on_silent = on_silent
        self._is_awaited = is_awaited
        self._replicas: dict[str, Replica] = {}
        """Members, as they are still known when they have left."""
        self._leaving: dict[Where, asyncio.Task[None]] = {}
        """Farewells to those that left; each ends with the last request there."""
        self._identity = identity.encode()
        self._header = f"{PROBER.decode()}: {prober(identity)}" if identity else ""
        self._tasks: dict[str, dict[str, asyncio.Task[None]]] = {}
        """Of each replica, by what is asked."""
        self._asking: dict[str, asyncio.Task[bool]] = {}
        """Of each replica the question for its models that is under way."""

    def follow(self) -> None:
        """Tasks for each member there is now; of any other only while it is awaited."""
        for name in [name for name in self._tasks if self._members.get(name) is None]:
            for task in self._tasks.pop(name).values():
                task.cancel()
            self._leaves(self._replicas.pop(name))
        for member in self._members:
            name = member.replica.id
            before = self._replicas.get(name)
            if before is not None and before.where != member.replica.where:  # TLS, say
                self._leaves(before)
            self._replicas[name] = member.replica
            if name not in self._tasks:
                self._tasks[name] = {}
                self._begin(name, "health", self._probes(name))
                if (leaving := self._leaving.pop(member.replica.where, None)) is not None:
                    leaving.cancel()  # it is back

    def _leaves(self, replica: Replica) -> None:
        if self._is_awaited is not None and self._is_awaited(replica):
            farewell = self._see_off(replica, self._is_awaited)
            task = asyncio.create_task(farewell, name=f"farewell of {replica.url}")
            self._leaving[replica.where] = task

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._asking.values(), *self._leaving.values()]
        for known in self._tasks.values():
            tasks.extend(known.values())
        self._tasks.clear()
        self._leaving.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh_models(self) -> bool:
        """Asks everybody that takes requests for its models, now; False: nobody said them. Of one
        slower than the others what it said before stands; a late answer counts for the next time.
        Clients cannot make a replica be asked more than once at a time: who comes meanwhile waits
        for the same answer."""
        pending = {self._asked_for_models(member.replica) for member in self._members.ready()}
        began, is_known, seconds = self._now(), False, None
        while pending and (seconds is None or seconds > 0):
            # Whoever leaves ends only this wait, not the questions.
            done, pending = await asyncio.wait(
                pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            now = self._now()
            if not is_known and any(not task.cancelled() and task.result() for task in done):
                is_known = True
                until = min(now + MODELS_GRACE_SECONDS, max(now, began + MODELS_WAIT_SECONDS))
            if is_known:
                seconds = until - now
        return is_known

    def _asked_for_models(self, replica: Replica) -> asyncio.Task[bool]:
        task = self._asking.get(replica.id)
        if task is None or task.done():
            task = asyncio.create_task(self._models(replica), name=f"models {replica.id}")
            self._asking[replica.id] = task
            task.add_done_callback(lambda done: self._no_longer_asks(replica.id, done))
        return task

    def _no_longer_asks(self, name: str, task: asyncio.Task[bool]) -> None:
        if self._asking.get(name) is task:
            del self._asking[name]

    def _begin(self, name: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name][what] = asyncio.create_task(work, name=f"{what} of {name}")

    async def _probes(self, name: str) -> None:
        """While it is a member. A good probe sets going what is asked of the well."""
        rhythm, asked = self._rhythm, self._tasks[name]
        others: dict[str, tuple[Question, float]] = {
            "metrics": (self._scrape, rhythm.scrape_seconds),
            "models": (self._models, MODELS_SECONDS),
        }
        while (member := self._members.get(name)) is not None:
            try:
                await self._probe(member.replica)
            except Exception:  # a mistake of ours: unwatched, a replica would stay as it is
                log.exception("probing %s failed", name)
            for what, (question, seconds) in others.items():
                if member.trouble:  # one started anew may have other models: no pause outlasts it
                    if what in asked:
                        asked.pop(what).cancel()
                elif what not in asked or asked[what].done():
                    self._begin(name, what, self._ask(name, question, seconds))
            await asyncio.sleep(rhythm.health_seconds)

    async def _ask(self, name: str, question: Question, seconds: float) -> None:
        """Again and again while it is a member and well."""
        while (member := self._members.get(name)) is not None and not member.trouble:
            pause = seconds
            try:
                await question(member.replica)
            except Exception:  # a mistake of ours
                log.exception("asking %s failed", name)
                pause = MODELS_SECONDS
            await asyncio.sleep(pause)

    async def _see_off(self, replica: Replica, is_awaited: Callable[[Replica], bool]) -> None:
        """It left with requests under way: those it will not answer are told, as a member's are."""
        silent = 0
        while is_awaited(replica):
            try:
                trouble, is_silent = await self._asked(replica)
                silent = silent + 1 if is_silent else 0
                if silent >= FAILURES_MAX and self._on_silent is not None:
                    self._on_silent(replica, trouble)
            except Exception:  # a mistake of ours
                log.exception("probing %s, which has left, failed", replica.id)
            await asyncio.sleep(self._rhythm.health_seconds)
        if self._leaving.get(replica.where) is asyncio.current_task():
            del self._leaving[replica.where]

    async def _probe(self, replica: Replica) -> None:
        trouble, is_silent = await self._asked(replica)
        self._members.probed(replica.id, trouble, self._now())
        if is_silent and self._on_silent is not None and self._members.is_down(replica.id):
            self._on_silent(replica, trouble)

    async def _asked(self, replica: Replica) -> tuple[str, bool]:
        """One probe: what is wrong, empty if nothing; and whether it gave no answer at all."""
        try:
            answer = await fetch(
                replica,
                self._rhythm.health_path,
                resolver=self._resolver,
                deadline_seconds=self._rhythm.health_deadline_seconds,
                key=self._key,
                header=self._header,
            )
            trouble = f"its health check says {answer.status}" if answer.status >= 500 else ""
            if self._identity and self._identity in answer.body:
                trouble = "it is this router itself: take it off the list"
        except FetchError as error:
            return f"its health check failed: {error}", True
        return trouble, False

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

    async def _models(self, replica: Replica) -> bool:
        """Whether it said them."""
        try:
            answer = json.loads(await self._get(replica, "/v1/models"))
            entries = answer["data"]
            models = tuple(entry for entry in entries if _is_model(entry))
        except (FetchError, ValueError, KeyError, TypeError, RecursionError):
            return False  # what it said before still stands
        self._members.serves(replica.id, models[:MODELS_MAX])
        return True

    async def _get(self, replica: Replica, path: str) -> bytes:
        answer = await fetch(
            replica,
            path,
            resolver=self._resolver,
            deadline_seconds=self._rhythm.health_deadline_seconds,
            key=self._key,
        )
        if answer.status != 200:
            raise FetchError(f"{path} says {answer.status}")
        return answer.body


def _is_model(entry: object) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("id"), str)
