"""Precision: what exact mode needs of the world: tokenizer, catalog, engines to compare with.

Opens the model's tokenizer and, in a namespace, a catalog that only reads. Compares our token ids
with every engine's when it is first ready and every `CHECK_SECONDS`, and follows the KV events of
replicas that announced a port: exact residency instead of a shadow. What fails leaves the router
working as it does without exact mode; `Exact.status` says what and why.

Effects only. Of the event loop's thread; no task outlives `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from router.exact import Exact
from router.fetch import FetchError, fetch
from router.fleet import Fleet
from router.members import Members
from router.relay.resolver import Resolver
from router.replicas import Replica
from router.residency import Residency
from router.settings import Settings, SettingsError
from router.tier import Tier
from router.tokens import TokenizerError, open_tokenizer

if TYPE_CHECKING:
    from sharedfs_backend.catalogview import CatalogView

log = logging.getLogger(__name__)

CHECK_SECONDS = 300.0
LOOK_SECONDS = 1.0
EVENTS_PAUSE_SECONDS = 5.0
DEADLINE_SECONDS = 30.0


class Precision:
    """See the module."""

    def __init__(
        self,
        exact: Exact,
        view: CatalogView | None,
        *,
        fleet: Fleet,
        members: Members,
        now: Callable[[], float],
        resolver: Resolver,
        replica_key: str | None = None,
        follows_events: bool = False,
    ) -> None:
        self.exact = exact
        self._view = view
        self._fleet = fleet
        self._members = members
        self._now = now
        self._resolver = resolver
        self._key = replica_key
        self._follows_events = follows_events
        self._checked: dict[str, float] = {}
        self._events: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="parity")

    async def stop(self) -> None:
        tasks = [*self._events.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._events.clear()
        self.exact.close()
        if self._view is not None:
            await asyncio.to_thread(self._view.close)

    def follow(self) -> None:
        """The list has changed."""
        current = {member.replica.id: member.replica for member in self._members}
        records = [each.announced for each in current.values() if each.announced is not None]
        self.exact.announced(records)
        for name in [name for name in self._checked if name not in current]:
            del self._checked[name]
            self.exact.parity.forget(name)
        for name in [name for name in self._events if name not in current]:
            self._events.pop(name).cancel()
        for name, replica in current.items():
            record = replica.announced
            is_wanted = self._follows_events and record is not None and record.kv_events_port
            if is_wanted and name not in self._events:
                self._events[name] = asyncio.create_task(self._follow_events(replica))

    async def _run(self) -> None:
        while True:
            for member in self._members.ready():
                name = member.replica.id
                if member.models is None or self._members.get(name) is not member:
                    continue  # the latter: it left while another was compared
                adapters = [str(one["id"]) for one in member.models if one.get("parent")]
                bases = [str(one.get("id")) for one in member.models if not one.get("parent")]
                self.exact.serves(bases, adapters)
                last = self._checked.get(name)
                if bases and (last is None or self._now() - last >= CHECK_SECONDS):
                    self._checked[name] = self._now()
                    await self._check(member.replica, bases[0])
            await asyncio.sleep(LOOK_SECONDS)

    async def _check(self, replica: Replica, model: str) -> None:
        try:
            await self.exact.check(partial(self._post, replica), replica.id, model)
        except Exception:  # a mistake of ours: the others are still to be compared
            log.exception("comparing token ids with %s failed", replica.id)
        if self._members.get(replica.id) is None:  # it left meanwhile
            self.exact.parity.forget(replica.id)

    async def _post(self, replica: Replica, path: str, body: bytes) -> bytes | None:
        try:
            answer = await fetch(
                replica,
                path,
                resolver=self._resolver,
                deadline_seconds=DEADLINE_SECONDS,
                key=self._key,
                body=body,
            )
        except FetchError:
            return None
        return answer.body if answer.status == 200 else None

    async def _follow_events(self, replica: Replica) -> None:
        from zmq.error import ZMQError  # pyzmq only where events are followed

        from router.kv_events import Follower, follow

        assert replica.announced is not None
        name, host = replica.id, f"[{replica.host}]" if ":" in replica.host else replica.host
        endpoint = f"tcp://{host}:{replica.announced.kv_events_port}"

        def changed(what: Residency) -> None:
            self._fleet.resident(name, what.stored, what.removed, what.cleared)

        while True:
            follower = Follower(changed)
            try:
                await follow(follower, endpoint)
            except (OSError, ZMQError) as error:
                log.warning("KV events of %s: %s", name, error)
            except Exception:  # a mistake of ours: what was known would count for ever
                log.exception("following the KV events of %s failed", name)
            if follower.batches:  # else it has its shadow still
                self._fleet.resident(name, (), (), True)
            await asyncio.sleep(EVENTS_PAUSE_SECONDS)


async def opened(
    settings: Settings,
    *,
    fleet: Fleet,
    members: Members,
    now: Callable[[], float],
    resolver: Resolver,
) -> Precision | None:
    """None unless the settings ask for exact mode. Raises SettingsError."""
    if settings.tokenizer is None:
        return None
    try:
        tokenizer = await asyncio.to_thread(open_tokenizer, settings.tokenizer)
    except TokenizerError as error:
        raise SettingsError(f"--tokenizer: {error}") from error
    view = await asyncio.to_thread(_view, settings)
    return Precision(
        Exact(tokenizer, None if view is None else Tier(view)),
        view,
        fleet=fleet,
        members=members,
        now=now,
        resolver=resolver,
        replica_key=settings.replica_key,
        follows_events=settings.kv_events,
    )


def _view(settings: Settings) -> CatalogView | None:
    """The namespace's catalog, if there is a namespace."""
    if settings.namespace is None:
        return None
    from sharedfs_backend.catalogview import CatalogView
    from sharedfs_backend.exceptions import ConfigError, NamespaceError
    from sharedfs_backend.settings import Settings as StoreSettings

    try:
        root, secret_file = settings.namespace, settings.secret_file
        return CatalogView(StoreSettings(root=root, secret_file=secret_file))
    except ConfigError as error:
        raise SettingsError(f"--namespace: {error}") from error
    except NamespaceError as error:
        log.warning("the shared tier is not looked into: %s", error)
        return None
