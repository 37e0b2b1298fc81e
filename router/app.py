"""App: one router process put together: what it serves, watches, follows and tells its peers.

`start` returns when the port answers, `drain` stops accepting and lets streams finish, `close` ends
every task, thread and socket `start` made. Everything lives on the running loop's thread but the
reading of the replica list. It decides nothing; each line here is who gets to know whom.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import resource
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.board import Board, Cause
from router.endpoints import Endpoints, Snapshot
from router.fleet import Fleet
from router.history import History
from router.members import Members
from router.peers import Peers
from router.precision import Precision, opened
from router.proving import Prover
from router.relay.limits import Limits, connections_within
from router.relay.resolver import Resolver
from router.relay.server import RelayServer, serve
from router.replicas import REPLICAS_MAX, Replica, ReplicaError, listed
from router.routes import Routes
from router.scores import Scores
from router.service import Rules, Service
from router.settings import Settings, SettingsError
from router.sight import sight_of
from router.sources import Follower, Listing, Source, check_secret, source_of
from router.steering import PARAMETERS, Steering, Verdict
from router.tally import Tally
from router.telling import Telling
from router.watch import Rhythm, Watch

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0  # how often load is written down for the page
FIRST_PROBE_SECONDS = 2.0  # of a process among others: a request would get 503 before
FIRST_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes on one port this is, and where they meet."""

    folder: Path | None = None
    number: int = 0
    port: int | None = None
    """Set where another process has already chosen one."""
    board: Board | None = None
    """Where processes have a supervisor."""
    supervisor: int | None = None
    """Its process id."""


class App:
    """One process. Made and used on the loop it runs on."""

    def __init__(
        self,
        settings: Settings,
        place: Place | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self.settings = settings
        self._place = place or Place()
        self._now = now
        self._wall = wall
        self._resolver = resolver or Resolver(now)
        self.fleet = Fleet(
            policy=settings.policy,
            slo_seconds=settings.slo_seconds,
            rng=rng or random.Random(),
        )
        self.members = Members(self.fleet)
        self.tally = Tally()
        self.history = History()
        self.scores = Scores(self.fleet, self.tally, self.history, wall=wall)
        identity = _identity(self._place)
        self._routes = Routes(
            self.members,
            replica_key=settings.replica_key,
            first_byte_seconds_max=settings.first_byte_seconds_max,
            identity=identity,
        )
        self.watch = Watch(
            self.members,
            self.fleet,
            Rhythm(
                health_seconds=settings.health_seconds,
                scrape_seconds=settings.scrape_seconds,
                health_path=settings.health_path,
            ),
            now=now,
            resolver=self._resolver,
            replica_key=settings.replica_key,
            on_silent=self._gone,
            is_awaited=self._is_awaited,
            identity=identity,
        )
        self.peers = Peers(self._asked, self._place.folder, self._place.number)
        self.telling = Telling(self.fleet, self.peers.meeting, self._place.number, now=self._now)
        self.service = Service(
            Rules(settings.api_key, settings.slo_seconds, settings.retries_max, identity),
            fleet=self.fleet,
            members=self.members,
            routes=self._routes,
            scores=self.scores,
            own=Endpoints(
                self.members,
                self,
                is_draining=lambda: self.is_draining,
                refresh_models=self.watch.refresh_models,
                identity=identity,
            ),
            now=now,
        )
        self._left: dict[str, None] = {}
        """Replicas that are gone. Forgotten with every change of the list: a request that was still
        under way when one left is counted for it later."""
        self.precision: Precision | None = None
        self._prover: Prover | None = None
        parameters = settings.no_load() or PARAMETERS
        if parameters:
            self.service.steering = Steering(parameters)
            self._prover = Prover(
                self.service.steering,
                self.members,
                now=now,
                resolver=self._resolver,
                replica_key=settings.replica_key,
            )
        self.relay: RelayServer | None = None
        self.is_draining = False
        self._follower: Follower | None = None
        self._sampler: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        assert self.relay is not None, "not started"
        return self.relay.port

    async def start(self) -> None:
        """Raises SettingsError for a list or a port that cannot be had."""
        check_secret(self.settings.secret_file)
        self.precision = await opened(
            self.settings,
            fleet=self.fleet,
            members=self.members,
            now=self._now,
            resolver=self._resolver,
        )
        if self.precision is not None:
            self.service.exact = self.precision.exact
            self.precision.start()
        source = source_of(self.settings, self._now)
        listing = await self._first_list(source)
        self._apply(listing)
        drained = await self._catch_up() if self._place.folder is not None else set()
        if self._place.board is not None:  # from here on it must not stand still
            self._place.board.beat(self._place.number)
        try:
            self.relay = await serve(
                self.service,
                host=self.settings.host,
                port=self.settings.port if self._place.port is None else self._place.port,
                limits=Limits(
                    body_bytes_max=self.settings.body_bytes_max,
                    connections_max=connections_within(_descriptors()),
                ),
                reuse_port=self.settings.workers > 1,
                now=self._now,
                resolver=self._resolver,
            )
        except (OSError, ValueError) as error:  # a host may be no name at all
            where = f"{self.settings.host}:{self.settings.port}"
            raise SettingsError(
                f"cannot listen on {where}: {error}; try another --port or --host"
            ) from error
        await self.peers.start()
        await self.telling.start()
        if self._place.folder is not None:
            await self._catch_up_again(drained)
        loop = asyncio.get_running_loop()
        self._follower = Follower(
            source,
            listing,
            on_list=lambda listing: _soon(loop, lambda: self._apply(listing)),
            on_trouble=lambda trouble: _soon(loop, lambda: self._no_list(trouble)),
            every_seconds=self.settings.list_seconds,
        )
        self._follower.start()
        self._sampler = asyncio.create_task(self._sample(), name="samples")
        if self._prover is not None:
            self._prover.start()

    async def drain(self, deadline_seconds: float) -> None:
        """No new connections; streams finish, for at most so long."""
        self.is_draining = True
        if self.relay is not None:
            await self.relay.drain(deadline_seconds)

    async def close(self) -> None:
        if self._sampler is not None:
            self._sampler.cancel()
            await asyncio.gather(self._sampler, return_exceptions=True)
        if self._follower is not None:
            await asyncio.to_thread(self._follower.stop)
        if self.relay is not None:
            await self.relay.close()
        await self.watch.stop()
        if self.precision is not None:
            await self.precision.stop()
        if self._prover is not None:
            await self._prover.stop()
        await self.telling.close()
        await self.peers.close()

    # -- what all processes on the port know (endpoints.Colleagues) ------------------------------

    async def snapshots(self) -> list[Snapshot]:
        return await self.peers.ask_all({"ask": "snapshot"})

    async def drain_replica(self, replica: str, is_draining: bool) -> bool:
        answers = await self.peers.ask_all(
            {"ask": "drain", "replica": replica, "is_draining": is_draining}
        )
        return any(answer["known"] for answer in answers)

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        """A peer's question, or one's own."""
        if question.get("ask") == "drain":
            return {"known": self.members.drain(question["replica"], question["is_draining"])}
        if question.get("ask") == "draining":
            return {"draining": [each.replica.id for each in self.members if each.is_draining]}
        if question.get("ask") == "list":
            return {"list": [each.replica.url for each in self.members]}
        relay = self.relay
        extra = {
            "tokens_per_byte": self.scores.tokens_per_byte,
            "connections": relay.connections if relay else 0,
            "upstream_connections": relay.upstream_connections if relay else 0,
            "heard": self.telling.heard,
        }
        sight = sight_of(self.fleet.view(self._now()), self.members, extra)
        # What exact mode does without, and why; null where it is off.
        sight["not_exact"] = None if self.precision is None else self.precision.exact.status
        board = self._place.board
        sight["replaced"] = board.replacements() if board else {cause.value: 0 for cause in Cause}
        for row in sight["replicas"]:  # whether it can be asked not to load
            row["no_load"] = self._no_load(row["id"])
        return {
            "tally": self.tally.dump(),
            "sight": sight,
            "history": self.history.dump(),
        }

    def _no_load(self, replica: str) -> str:
        steering = self.service.steering
        return (Verdict.NO_MEANS if steering is None else steering.verdict(replica)).value

    async def _first_list(self, source: Source) -> Listing:
        """The list, or what the other processes stay with while it cannot be read."""
        try:
            return await asyncio.to_thread(source.read)
        except (ReplicaError, OSError) as error:
            for answer in await self.peers.ask_all({"ask": "list"}):
                if urls := answer.get("list"):
                    self._no_list(str(error))
                    return listed(urls)
            raise SettingsError(f"the list of replicas: {error}") from error

    async def _catch_up(self) -> set[str]:
        """Before a process listens among others, which have told clients that they serve: whom they
        drain, and for a while until somebody takes requests."""
        drained = await self._drained_by_others() or set()
        for name in drained:
            self.members.drain(name, True)
        until = self._now() + FIRST_PROBE_SECONDS
        while not self.members.ready() and self._now() < until:
            await asyncio.sleep(FIRST_LOOK_SECONDS)
        return drained

    async def _catch_up_again(self, before: set[str]) -> None:
        """Once the others reach this process: what they were told while they did not."""
        drained = await self._drained_by_others()
        if drained is not None:
            for name in drained ^ before:
                self.members.drain(name, name in drained)

    async def _drained_by_others(self) -> set[str] | None:
        """None: there are none."""
        _, *others = await self.peers.ask_all({"ask": "draining"})
        return {name for answer in others for name in answer["draining"]} if others else None

    # -- what happens by itself ------------------------------------------------------------------

    def _apply(self, listing: Listing) -> None:
        joined, left = self.members.apply(listing)
        for name in left:
            self._routes.forget(name)
            self._left[name] = None
        for name in joined:
            self._left.pop(name, None)
        while len(self._left) > REPLICAS_MAX:
            del self._left[next(iter(self._left))]
        self.tally.forget(self._left)
        self.watch.follow()
        if self.precision is not None:
            self.precision.follow()
        if self._prover is not None:
            self._prover.follow()
        if joined or left:
            log.info("replicas: %d; joined: %s; left: %s", len(listing), joined, left)

    def _gone(self, replica: Replica, trouble: str) -> None:
        """Requests that wait for it go elsewhere now, not when their own time is up, if there is
        an elsewhere: else they may as well wait for it to come back."""
        if self.relay is None or not self.members.ready():
            return
        if moved := self.relay.give_up(replica.where, trouble):
            log.warning(
                "%s is down (%s); requests that waited for it: %d", replica.id, trouble, moved
            )

    def _is_awaited(self, replica: Replica) -> bool:
        """Whether a request waits for its answer."""
        return self.relay is not None and self.relay.waits(replica.where)

    def _no_list(self, trouble: str) -> None:
        self.tally.count(("list_errors_total",))
        log.warning("the list of replicas stays as it was: %s", trouble)

    async def _sample(self) -> None:
        while True:
            bucket = self.history.at(self._wall())
            for seen in self.fleet.view(self._now()).replicas:
                bucket.in_flight[seen.replica] = seen.in_flight
                bucket.pending_s[seen.replica] = round(seen.pending_s, 3)
            await asyncio.sleep(SAMPLE_SECONDS)


def _identity(place: Place) -> str:
    """Of this router and no other; the same for all its processes, which meet in one directory."""
    if place.folder is None:
        return secrets.token_hex(8)
    return hashlib.sha256(os.fsencode(place.folder)).hexdigest()[:16]


def _descriptors() -> int:
    """How many this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """From the list's thread to the loop's, which may have ended meanwhile."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(act)
