"""Answers: what the router says in its own name, and what it adds to a replica's answer.

Errors have the shape OpenAI's clients expect. `x-sharedfs-replica` names the replica,
`x-sharedfs-reason` the estimate that chose it: milliseconds, `;` between the parts. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from router.outcome import Decision
from router.relay.exchange import Header, Reply

REPLICA = b"x-sharedfs-replica"
REASON = b"x-sharedfs-reason"
PROBER = b"x-sharedfs-prober"
"""In a router's probes: whose they are (`prober`)."""
PASSED = "x-sharedfs-passed-"
"""With a router's mark behind it: in every request that this router has passed on."""
JSON: Header = (b"content-type", b"application/json")
FRESH: Header = (b"cache-control", b"no-store")


def reason(decision: Decision, retries: int) -> bytes:
    """`queue=12.0;local=0.0;shared=3.1;compute=80.2;total=95.3;runner-up=b:8000,101.2`.

    `total` is the estimated time to first token; loading overlaps with queueing, so it is not the
    sum. `runner-up` is the next best replica and its total. `retries` stands there if there were
    some."""
    costs = decision.costs
    # Formatting bytes takes twice as long, format specifiers four times.
    text = "queue=%.1f;local=%.1f;shared=%.1f;compute=%.1f;total=%.1f" % (  # noqa: UP031
        1e3 * costs.queue_s, 1e3 * costs.local_s, 1e3 * costs.shared_s,
        1e3 * costs.compute_s, 1e3 * costs.total_s,
    )  # fmt: skip
    if decision.runner_up is not None:
        text += ";runner-up=" + decision.runner_up
        if decision.runner_up_total_s is not None:
            text += ",%.1f" % (1e3 * decision.runner_up_total_s)
    if retries:
        text += f";retries={retries}"
    return text.encode()


def prober(identity: str) -> str:
    """What a router's probes say of it. Not what its answers say, which a replica that repeats what
    it is sent would repeat."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def itself(identity: str) -> Reply:
    """To a router's probe that has come back to it."""
    return as_json({"status": "a loop", "router": identity}, 508)


def mark(identity: str) -> bytes:
    """The name of the header by which a router knows a request it has passed on already. A name
    for each router: a value would be the last one's alone."""
    return (PASSED + hashlib.sha256(f"passed {identity}".encode()).hexdigest()[:16]).encode()


def looped() -> Reply:
    """508: the request has come back. Who sent it here tries another replica."""
    return error(
        508,
        "this request has been through this router before: one of its replicas is a router that"
        " sends requests back; take either off the other's list",
        "loop_detected",
    )


def error(status: int, message: str, kind: str, *headers: Header) -> Reply:
    """An error in OpenAI's shape."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return Reply(status, json.dumps(body).encode(), (JSON, FRESH, *headers))


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), (JSON, FRESH))


def overloaded(least_seconds: float, retry_after_seconds: float, slo_seconds: float) -> Reply:
    """429: every replica would take longer than the objective."""
    return error(
        429,
        f"the first token would take about {least_seconds:.1f} s,"
        f" more than the {slo_seconds:g} s this router promises",
        "overloaded",
        (b"retry-after", str(max(1, math.ceil(retry_after_seconds))).encode()),
        (REASON, f"least={1e3 * least_seconds:.1f}".encode()),
    )


def nobody(detail: str) -> Reply:
    """503: there is no replica to send it to."""
    return error(503, detail, "unavailable", (b"retry-after", b"1"), (REASON, b"no-replica"))


def unauthorized() -> Reply:
    """401. `Basic` lets a browser ask for the key: it is the password, under any name."""
    return error(
        401,
        "the API key is missing or wrong",
        "invalid_api_key",
        (b"www-authenticate", b'Basic realm="router", charset="UTF-8"'),
    )
