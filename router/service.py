"""Service: the `Director` of the relay: who may ask, what the router answers itself, who gets it.

The order of a request: its key is compared (in constant time) with its head alone; the router's own
paths are answered; what has a prompt is read once, hashed, and decided by the fleet, which reserves
in the same step; everything else goes to any replica that takes requests.

It joins relay and decisions and does neither: no sockets, no estimates. Of the event loop's thread.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import unquote

from router import answers
from router.asks import Ask, Usage
from router.exact import Exact
from router.exchanges import Decided
from router.fleet import Fleet
from router.members import NOBODY, Members
from router.outcome import Decision, Overload
from router.passages import SAFE_METHODS, SAFE_PATHS, Passage
from router.prefix import PROMPTED, Parsed, ask_of, model_of, parse
from router.relay.exchange import Exchange, Reply, Request
from router.routes import Routes
from router.scores import Scores
from router.steering import Steering

OPEN_PATHS = frozenset({b"/health", b"/ready", b"/metrics"})
"""Asked by machines that have no key; they show no prompt and change nothing."""
MODEL_PATH = b"/v1/models/"
KINDS = {path: path.decode().removeprefix("/v1/").strip("/") for path in PROMPTED}


class OwnPaths(Protocol):
    """The router's own endpoints."""

    def answer(self, path: bytes, request: Request) -> Reply | Awaitable[Reply] | None:
        """None: the path is not the router's."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a site decided about requests."""

    api_key: str | None = None
    slo_seconds: float | None = None
    retries_max: int = 2
    identity: str = ""
    """Of this router and no other."""


class Service:
    """Implements `relay.exchange.Director`."""

    def __init__(
        self,
        rules: Rules,
        *,
        fleet: Fleet,
        members: Members,
        routes: Routes,
        scores: Scores,
        own: OwnPaths,
        now: Callable[[], float],
    ) -> None:
        self.exact: Exact | None = None
        """Set where asks are made of the engine's own tokens."""
        self.steering: Steering | None = None
        """Set where a site names what asks its engines not to load."""
        self.members = members
        self.routes = routes
        self.scores = scores
        self.retries_max = rules.retries_max
        self._rules = rules
        self._key = rules.api_key.encode() if rules.api_key else None
        self._loop = answers.itself(rules.identity)
        self._prober = answers.prober(rules.identity).encode()
        self._mark = answers.mark(rules.identity)
        self._fleet = fleet
        self._own = own
        self._now = now

    def admit(self, request: Request) -> Reply | None:
        if request.method == b"GET" and request.header(answers.PROBER) == self._prober:
            return self._loop  # wherever else its path would have led
        if self._key is None or path_of(request) in OPEN_PATHS:
            return None
        if hmac.compare_digest(key_of(request), self._key):
            return None
        self.scores.refused("key")
        return answers.unauthorized()

    def begin(self, request: Request) -> Exchange | Reply | Awaitable[Exchange | Reply]:
        path = path_of(request)
        if request.header(self._mark) is not None:
            self.scores.refused("loop")
            return answers.looped()
        if path in PROMPTED and request.method == b"POST":
            return self._prompted(path, request)
        own = self._own.answer(path, request)
        return self._passed(path, request) if own is None else own

    def choose(self, ask: Ask, now: float, exclude: frozenset[str]) -> Decision | Overload | None:
        """The fleet's choice among the replicas that serve the model, reserved."""
        lacking = self.members.without(ask.model)
        return self._fleet.choose(ask, now, exclude=exclude | lacking if exclude else lacking)

    def refusal(self, overload: Overload | None) -> Reply:
        """The answer to a request no replica gets."""
        if overload is not None:
            self.scores.refused("slo")
            slo = self._rules.slo_seconds or 0.0
            return answers.overloaded(overload.least_cost_s, overload.retry_after_s, slo)
        self.scores.refused("no replica")
        return answers.nobody("no replica can take the request now")

    def _prompted(
        self, path: bytes, request: Request
    ) -> Exchange | Reply | Awaitable[Exchange | Reply]:
        parsed = parse(path, request.body)
        if parsed.error is not None:
            return self._passed(path, request)  # an engine refuses it in its own words
        if self.exact is not None:
            return self._exactly(self.exact, path, parsed, request)
        ask = ask_of(parsed, self.scores.tokens_per_byte)
        return self._decided(path, parsed, request, ask, None)

    async def _exactly(
        self, exact: Exact, path: bytes, parsed: Parsed, request: Request
    ) -> Exchange | Reply:
        asked = await exact.ask(path, parsed, self.scores.tokens_per_byte)
        return self._decided(path, parsed, request, asked.ask, partial(exact.answered, asked))

    def _decided(
        self,
        path: bytes,
        parsed: Parsed,
        request: Request,
        ask: Ask,
        on_usage: Callable[[Usage], None] | None,
    ) -> Exchange | Reply:
        now = self._now()
        decision = self.choose(ask, now, NOBODY)
        if not isinstance(decision, Decision):
            return self.refusal(decision)
        steering, steer = self.steering, None
        if steering is not None:
            steer = partial(steering.steered, request.body, parsed.fields)
        return Decided(
            self,
            ask,
            decision,
            KINDS[path],
            parsed.stream,
            request.received_at or now,
            now,
            on_usage,
            steer,
        )

    def _passed(self, path: bytes, request: Request) -> Exchange | Reply:
        lacking = NOBODY
        if not self.members.are_alike():
            lacking = self.members.without(_model(path, request))
        member = self.members.next_ready(lacking)
        if member is None:
            return self.refusal(None)
        is_safe = request.method in SAFE_METHODS or path in SAFE_PATHS or path in PROMPTED
        return Passage(self, member, is_safe, lacking)


def _model(path: bytes, request: Request) -> str:
    """The model that a request without a prompt is about; empty where it names none."""
    if path.startswith(MODEL_PATH):
        return unquote(path[len(MODEL_PATH) :].decode("latin-1"))
    return model_of(request.body) if request.method == b"POST" else ""


def path_of(request: Request) -> bytes:
    return request.target.partition(b"?")[0]


def key_of(request: Request) -> bytes:
    """The key a request carries: a bearer token, `x-api-key`, or the password of Basic. Empty if
    there is none, or none that can be read."""
    scheme, _, value = (request.header(b"authorization") or b"").partition(b" ")
    value = value.strip()
    if scheme.lower() == b"bearer":
        return value
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return (request.header(b"x-api-key") or b"").strip()
