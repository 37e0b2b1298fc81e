"""HTTP as the demo needs it: streamed completions with their TTFT, and Prometheus text.

Must not know: the store, processes, what a figure is compared with. Standard library only, so that
what is measured is the server and not a client library.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client.parser import text_string_to_metric_families

REQUEST_SECONDS = 300.0


class RequestFailed(Exception):
    """The server answered with an error, or stopped answering; `had_begun`: after a first token."""

    def __init__(self, text: str, *, had_begun: bool = False) -> None:
        super().__init__(text)
        self.had_begun = had_begun


@dataclass(frozen=True, slots=True)
class Completion:
    """One greedy completion: what came, when the first token came, and what a router said."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ttft_seconds: float
    total_seconds: float
    replica: str = ""
    reason: str = ""
    times: tuple[float, ...] = ()
    """Seconds after sending at which each event with tokens came."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A metrics page, read once."""

    samples: tuple[Sample, ...] = field(repr=False)

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum over the samples of that name carrying those labels; 0 without one."""
        return sum(s.value for s in self.select(name, **labels))

    def select(self, name: str, **labels: str) -> list[Sample]:
        """Returns the samples of that name that carry those labels."""
        return [
            s
            for s in self.samples
            if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        ]


def parse_metrics(text: str) -> Metrics:
    """Returns the samples in a Prometheus text page."""
    return Metrics(
        tuple(
            Sample(s.name, s.labels, s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
        )
    )


def get_text(port: int, path: str, timeout_seconds: float = 10.0) -> str:
    """Returns the body of a GET on loopback that answered 200; RequestFailed otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"GET {path} on port {port}: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise RequestFailed(f"GET {path} on port {port}: {response.status} {body[:200]}")
    return body


def get_metrics(port: int) -> Metrics:
    """Returns the metrics page served on that port."""
    return parse_metrics(get_text(port, "/metrics"))


def complete(
    port: int,
    model: str,
    prompt: Sequence[int],
    *,
    tokens_max: int,
    cache_salt: str | None = None,
) -> Completion:
    """Sends token ids, decodes greedily, returns the tokens with the time of the first."""
    body: dict[str, object] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens_max,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "logprobs": 1,
        "return_token_ids": True,
    }
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    begin = time.perf_counter()
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read().decode(errors="replace")
            raise RequestFailed(f"completion on port {port}: {response.status} {text[:500]}")
        done = _read_stream(response, begin)
        return replace(
            done,
            replica=response.getheader("x-sharedfs-replica", ""),
            reason=response.getheader("x-sharedfs-reason", ""),
        )
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"completion on port {port}: {error}") from error
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse, begin: float) -> Completion:
    tokens: list[int] = []
    logprobs: list[float] = []
    times: list[float] = []
    is_whole = False
    for raw in _lines(response, tokens):
        line = raw.strip()
        is_whole |= line == b"data: [DONE]"
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RequestFailed(f"completion: {event['error']}")
        for choice in event.get("choices", []):
            new = choice.get("token_ids") or []
            if new:
                times.append(time.perf_counter() - begin)
            tokens.extend(new)
            logprobs.extend((choice.get("logprobs") or {}).get("token_logprobs") or [])
    if not times:
        raise RequestFailed("completion: the stream ended without a token")
    if not is_whole:
        raise RequestFailed("completion: the stream ended too early", had_begun=True)
    total = time.perf_counter() - begin
    return Completion(tuple(tokens), tuple(logprobs), times[0], total, times=tuple(times))


def _lines(response: http.client.HTTPResponse, tokens: Sequence[int]) -> Iterator[bytes]:
    """The stream's lines; RequestFailed, knowing whether a token had come, when it breaks off."""
    try:
        yield from response
    except (OSError, http.client.HTTPException) as error:
        raise RequestFailed(f"completion: {error!r}", had_begun=bool(tokens)) from error
