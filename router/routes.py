"""Routes: the attempt a replica's id stands for: where to connect and which headers to add.

What does not change from request to request is rendered once for each replica. The replicas' key
replaces whatever key the client sent: clients need not know it, nor replicas the clients'. Pure.
"""

from __future__ import annotations

from router.answers import REASON, REPLICA, mark
from router.members import Members
from router.relay.exchange import Attempt, Header
from router.replicas import Replica


class Routes:
    """Of the event loop's thread. Bounded by the members; `forget` drops one that left."""

    def __init__(
        self,
        members: Members,
        *,
        replica_key: str | None,
        first_byte_seconds_max: float | None,
        identity: str = "",
    ) -> None:
        """`identity`: requests are marked as this router's, so that it knows those that return."""
        self._members = members
        self._request_headers: tuple[Header, ...] = ()
        if identity:
            self._request_headers += ((mark(identity), b"1"),)
        if replica_key:
            key = replica_key.encode()
            self._request_headers += ((b"authorization", b"Bearer " + key), (b"x-api-key", key))
        self._first_byte_seconds_max = first_byte_seconds_max
        self._known: dict[str, tuple[Replica, bytes, Header]] = {}

    def forget(self, replica: str) -> None:
        self._known.pop(replica, None)

    def attempt(
        self,
        name: str,
        reason: bytes,
        body: tuple[bytes, ...] | None = None,
        is_repeatable: bool = True,
    ) -> Attempt:
        """For a member. `body` is sent in place of the request's own."""
        member = self._members.get(name)
        assert member is not None, "only members are chosen"
        replica = member.replica
        known = self._known.get(name)
        if known is None or known[0] is not replica:
            known = (replica, replica.path.encode(), (REPLICA, name.encode()))
            self._known[name] = known
        return Attempt(
            replica.host,
            replica.port,
            replica.is_tls,
            known[1],
            self._request_headers,
            (known[2], (REASON, reason)),
            body,
            self._first_byte_seconds_max,
            is_repeatable,
        )
