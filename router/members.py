"""Members: the replicas there are right now, who of them may be chosen, and why not.

The one place where a list of replicas, the breakers and a person's wish to drain one meet, and
the only one that tells the fleet about them. Health reaches the fleet as a state and nothing else:
load is counted by reservations, which no probe opens or closes.

It must not know HTTP or sockets; times are arguments. Of the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from router.breaker import Breaker, Position
from router.fleet import Fleet
from router.outcome import ReplicaState
from router.replicas import Replica

_STATE_OF = {
    Position.CLOSED: ReplicaState.READY,
    Position.HALF_OPEN: ReplicaState.HALF_OPEN,
    Position.OPEN: ReplicaState.DOWN,
}
TROUBLE_CHARACTERS_MAX = 200
LACKING_MAX = 256
NOBODY: frozenset[str] = frozenset()
"""No replica is left out."""
MODEL_CHARACTERS_MAX = 256
"""Of models whose lacking replicas are remembered; longer names are looked up each time."""


@dataclass(slots=True)
class Member:
    """One replica of the list, and what is known of it beside its load."""

    replica: Replica
    breaker: Breaker = field(default_factory=Breaker)
    state: ReplicaState = ReplicaState.DOWN
    is_draining: bool = False
    models: tuple[Mapping[str, object], ...] | None = None
    """The entries of its /v1/models; None until it answered one."""
    trouble: str = "not probed yet"
    """The last thing that went wrong; empty when the last thing went well."""


class Members:
    """By replica id. Replicas that left are forgotten: state is bounded by the list's length."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._members: dict[str, Member] = {}
        self._turn = 0
        self._lacking: dict[str, frozenset[str]] = {}
        self._alike: bool | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, replica: str) -> Member | None:
        return self._members.get(replica)

    def apply(self, replicas: Mapping[str, Replica]) -> tuple[list[str], list[str]]:
        """Makes the list current; returns the ids that joined and those that left. What is known
        about a replica that stays on it, stays."""
        left = [name for name in self._members if name not in replicas]
        joined = [name for name in replicas if name not in self._members]
        for name in left:
            del self._members[name]
            self._fleet.leave(name)
        for name, replica in replicas.items():
            member = self._members.get(name)
            if member is None:
                self._members[name] = Member(replica)
                self._fleet.join(name, kv_bytes_per_token=replica.kv_bytes_per_token)
                self._fleet.set_state(name, ReplicaState.DOWN)
            elif member.replica != replica:
                member.replica = replica
                self._fleet.join(name, kv_bytes_per_token=replica.kv_bytes_per_token)
        self._models_changed()
        return joined, left

    def failed(self, name: str, why: str, now: float) -> None:
        """A request failed by this replica's fault."""
        if member := self._members.get(name):
            member.breaker.failed(now)
            member.trouble = why[:TROUBLE_CHARACTERS_MAX]
            self._settle(member)

    def answered(self, name: str) -> None:
        """It answered a request, with whatever status."""
        member = self._members.get(name)
        if member and (member.trouble or member.state is not ReplicaState.READY):
            member.breaker.answered()
            member.trouble = "" if member.breaker.position is Position.CLOSED else member.trouble
            self._settle(member)

    def probed(self, name: str, trouble: str, now: float) -> None:
        """A probe came back; `trouble` is empty if all is well."""
        if member := self._members.get(name):
            member.breaker.probed(not trouble, now)
            if trouble or member.breaker.position is Position.CLOSED:
                member.trouble = trouble[:TROUBLE_CHARACTERS_MAX]
            self._settle(member)

    def is_down(self, name: str) -> bool:
        """Whether its breaker is open: no answer is expected of it."""
        member = self._members.get(name)
        return member is not None and member.breaker.position is Position.OPEN

    def serves(self, name: str, models: tuple[Mapping[str, object], ...]) -> None:
        """What its /v1/models lists."""
        if member := self._members.get(name):
            member.models = models
            self._models_changed()

    def drain(self, name: str, is_draining: bool) -> bool:
        """No new requests for it, or new ones again. False: there is no such replica."""
        member = self._members.get(name)
        if member is None:
            return False
        member.is_draining = is_draining
        self._settle(member)
        return True

    def without(self, model: str) -> frozenset[str]:
        """Replicas known not to serve a model; none if nobody does: one of them shall say so.
        Without a model every engine serves its own."""
        if not model:
            return NOBODY
        known = self._lacking.get(model)
        if known is None:
            lacking = frozenset(
                name
                for name, member in self._members.items()
                if (served := _ids(member.models)) is not None and model not in served
            )
            known = lacking if len(lacking) < len(self._members) else NOBODY
            if len(model) <= MODEL_CHARACTERS_MAX:  # clients may ask for any name
                if len(self._lacking) >= LACKING_MAX:
                    self._lacking.clear()
                self._lacking[model] = known
        return known

    def are_alike(self) -> bool:
        """Whether all are known to serve the same models."""
        if self._alike is None:
            served = {_ids(member.models) for member in self._members.values()}
            self._alike = len(served) < 2 and None not in served
        return self._alike

    def next_ready(self, exclude: frozenset[str] = NOBODY) -> Member | None:
        """One that takes requests, in turn: for what is not prefilled."""
        for wanted in (ReplicaState.READY, ReplicaState.HALF_OPEN):
            ready = [
                member
                for name, member in self._members.items()
                if member.state is wanted and name not in exclude
            ]
            if ready:
                self._turn += 1
                return ready[self._turn % len(ready)]
        return None

    def ready(self) -> list[Member]:
        """Those that take requests."""
        takes = (ReplicaState.READY, ReplicaState.HALF_OPEN)
        return [member for member in self._members.values() if member.state in takes]

    def merged_models(self) -> list[dict[str, object]]:
        """Every model some replica serves, once, with the replicas that do."""
        merged: dict[object, dict[str, object]] = {}
        for name, member in self._members.items():
            for entry in member.models or () if member.state is not ReplicaState.DOWN else ():
                known = merged.setdefault(entry.get("id"), {**entry, "replicas": []})
                holders = known["replicas"]
                assert isinstance(holders, list)
                holders.append(name)
        return list(merged.values())

    def _models_changed(self) -> None:
        self._lacking.clear()
        self._alike = None

    def _settle(self, member: Member) -> None:
        state = _STATE_OF[member.breaker.position]
        if member.is_draining and state is not ReplicaState.DOWN:
            state = ReplicaState.DRAINING
        if state is not member.state:
            member.state = state
            self._fleet.set_state(member.replica.id, state)


def _ids(models: tuple[Mapping[str, object], ...] | None) -> frozenset[object] | None:
    """What requests call them by."""
    return None if models is None else frozenset(entry.get("id") for entry in models)
