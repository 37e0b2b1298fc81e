"""Endpoints: the paths the router answers itself.

`/` the page; `/health` the router is alive; `/ready` it has a replica that takes requests;
`/metrics`, `/replicas`, `/router/history` of all processes on this port; `/v1/models` of all
replicas together; `POST` and `DELETE /replicas/{id}/drain`. Whatever changes something refuses
a browser that comes from another site.

It must not know sockets: what other processes see comes through `colleagues`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from router import answers, history, metrics, sight
from router.members import Members
from router.relay.exchange import Header, Reply, Request
from router.tally import Tally

ASSETS = {
    b"/": ("index.html", b"text/html; charset=utf-8"),
    b"/router/page.css": ("page.css", b"text/css; charset=utf-8"),
    b"/router/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    b"/router/plots.js": ("plots.js", b"text/javascript; charset=utf-8"),
}
PAGE_HEADERS: tuple[Header, ...] = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self';"
     b" connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)  # fmt: skip
READERS = frozenset({b"GET", b"HEAD"})
DRAIN = b"/drain"
REPLICAS = b"/replicas"
PROMETHEUS: Header = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

Snapshot = dict[str, Any]
"""What one process tells another: its `tally`, `sight` and `history`."""


class Colleagues(Protocol):
    """All processes on this port, this one first."""

    async def snapshots(self) -> list[Snapshot]:
        """Of those that answered in time."""

    async def drain_replica(self, replica: str, is_draining: bool) -> bool:
        """Tells all of them. False: there is no such replica."""


class Endpoints:
    """Of the event loop's thread."""

    def __init__(
        self,
        members: Members,
        colleagues: Colleagues,
        *,
        is_draining: Callable[[], bool],
        refresh_models: Callable[[], Awaitable[bool]],
        identity: str = "",
    ) -> None:
        """`identity` is in what the router says of its health: so it knows itself in its list."""
        self._members = members
        self._colleagues = colleagues
        self._is_draining = is_draining
        self._refresh_models = refresh_models
        self._identity = identity
        folder = resources.files("router.page")
        self._pages = {
            path: Reply(200, (folder / name).read_bytes(), ((b"content-type", kind), *PAGE_HEADERS))
            for path, (name, kind) in ASSETS.items()
        }
        self._readers: dict[bytes, Callable[[], Reply | Awaitable[Reply]]] = {
            b"/health": self._health,
            b"/ready": self._ready,
            b"/metrics": self._metrics,
            b"/replicas": self._replicas,
            b"/router/history": self._history,
            b"/v1/models": self._models,
        }

    def answer(self, path: bytes, request: Request) -> Reply | Awaitable[Reply] | None:
        """The router's own answer, or None: the path is not the router's."""
        if path.startswith(REPLICAS) and path.endswith(DRAIN):
            return self._drain(path, request)
        page, reader = self._pages.get(path), self._readers.get(path)
        if page is None and reader is None:
            return None
        if request.method not in READERS:
            return _not_allowed(b"GET, HEAD")
        return page if reader is None else reader()

    def _health(self) -> Reply:
        status = "draining" if self._is_draining() else "ok"
        return answers.as_json({"status": status, "router": self._identity})

    def _ready(self) -> Reply:
        count = len(self._members.ready())
        is_ready = count > 0 and not self._is_draining()
        body = {"ready": is_ready, "replicas": len(self._members), "replicas_ready": count}
        return answers.as_json({**body, "router": self._identity}, 200 if is_ready else 503)

    async def _metrics(self) -> Reply:
        whole, tally = await self._sight(), Tally()
        for dump in whole.pop("tallies"):
            tally.merge(dump)
        return Reply(200, metrics.page(tally, whole), (PROMETHEUS, answers.FRESH))

    async def _replicas(self) -> Reply:
        whole = await self._sight()
        del whole["tallies"]
        return answers.as_json(whole)

    async def _history(self) -> Reply:
        snapshots = await self._colleagues.snapshots()
        whole = history.shown([snapshot["history"] for snapshot in snapshots])
        whole["sight"] = sight.merged([snapshot["sight"] for snapshot in snapshots])
        return answers.as_json(whole)

    async def _models(self) -> Reply:
        is_known = await self._refresh_models()
        models = self._members.merged_models()
        if not is_known and self._members.ready():
            return answers.nobody("no replica says which models it serves; see /replicas")
        if not is_known and not models:  # else those that drain
            return answers.nobody("no replica can take the request now")
        return answers.as_json({"object": "list", "data": models})

    async def _sight(self) -> dict[str, Any]:
        snapshots = await self._colleagues.snapshots()
        whole = sight.merged([snapshot["sight"] for snapshot in snapshots])
        return {**whole, "tallies": [snapshot["tally"] for snapshot in snapshots]}

    def _drain(self, path: bytes, request: Request) -> Reply | Awaitable[Reply]:
        if request.method not in (b"POST", b"DELETE"):
            return _not_allowed(b"POST, DELETE")
        if is_from_elsewhere(request):
            return answers.error(403, "a page of another site may not do this", "forbidden")
        name = unquote(path[len(REPLICAS) + 1 : -len(DRAIN)].decode("latin-1"))
        return self._drained(name, request.method == b"POST")

    async def _drained(self, name: str, is_draining: bool) -> Reply:
        if not await self._colleagues.drain_replica(name, is_draining):
            return answers.error(404, f"there is no replica {name!r}", "not_found")
        return answers.as_json({"id": name, "draining": is_draining})


def is_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that a page of another site sent this."""
    origin = request.header(b"origin")
    if origin is not None:
        try:
            host = urlsplit(origin.decode("latin-1")).netloc
        except ValueError:
            return True
        return host.encode() != (request.header(b"host") or b"")
    return request.header(b"sec-fetch-site") not in (None, b"same-origin", b"none")


def _not_allowed(methods: bytes) -> Reply:
    return answers.error(405, "the path takes another method", "not_allowed", (b"allow", methods))
