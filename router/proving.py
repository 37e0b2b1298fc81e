"""Proving: which replicas honour the parameters that ask an engine not to load (`steering`).

A replica is tried when it takes requests and another one with the same model does too: that one
computes two short prompts, then this one is sent them. What proves nothing (the tier was not quick
enough, cached tokens are not reported) is tried again later. A fleet of one is not tried: there is
nobody whose prefixes it would load.

Effects only. Of the event loop's thread; no task outlives `stop`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from router.asks import Usage
from router.fetch import FetchError, fetch
from router.members import Member, Members
from router.relay.resolver import Resolver
from router.replicas import Replica
from router.reports import usage_of
from router.steering import Steering, Verdict

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 300.0
SETTLE_SECONDS = 5.0
"""Until what one replica stored is surely found by another: refreshes take about a second."""
DEADLINE_SECONDS = 60.0


class Prover:
    """See the module."""

    def __init__(
        self,
        steering: Steering,
        members: Members,
        *,
        now: Callable[[], float],
        resolver: Resolver,
        replica_key: str | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.steering = steering
        self._members = members
        self._now = now
        self._resolver = resolver
        self._key = replica_key
        self._settle_seconds = settle_seconds
        self._random = random.Random()
        self._tried: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="proving")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self) -> None:
        """The list has changed."""
        for name in [name for name in self._tried if self._members.get(name) is None]:
            del self._tried[name]
            self.steering.forget(name)

    async def _run(self) -> None:
        while True:
            for member in self._members.ready():
                try:
                    await self._look(member)
                except Exception:  # a mistake of ours: the others are still to be tried
                    log.exception("trying %s failed", member.replica.id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, member: Member) -> None:
        name, now = member.replica.id, self._now()
        tried = self._tried.get(name)
        if tried is not None and (
            self.steering.verdict(name) is not Verdict.UNPROVEN or now - tried < AGAIN_SECONDS
        ):
            return
        models = _bases(member)
        for other in self._members.ready():
            shared = models & _bases(other)
            if other is not member and shared:
                self._tried[name] = now
                verdict = await self.steering.probe(
                    name,
                    partial(self._complete, other.replica, min(shared)),
                    partial(self._complete, member.replica, min(shared)),
                    member.replica.chunk_tokens,
                    self._random,
                    partial(asyncio.sleep, self._settle_seconds),
                )
                if self._members.get(name) is None:  # it left meanwhile
                    self.follow()
                log.info("asking %s not to load: %s", name, verdict.value)
                return

    async def _complete(
        self, replica: Replica, model: str, fields: Mapping[str, Any]
    ) -> Usage | None:
        body = json.dumps({"model": model, **fields}).encode()
        try:
            answer = await fetch(
                replica,
                "/v1/completions",
                resolver=self._resolver,
                deadline_seconds=DEADLINE_SECONDS,
                key=self._key,
                body=body,
            )
        except FetchError:
            return None
        return usage_of(answer.body) if answer.status == 200 else None


def _bases(member: Member) -> set[str]:
    """The models it serves, adapters left out."""
    return {str(one["id"]) for one in member.models or () if not one.get("parent")}
