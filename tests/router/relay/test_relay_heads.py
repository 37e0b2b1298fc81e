"""Heads as bytes: what is written anew, and what is not believed. No sockets."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.relay.exchange import Attempt, Reply, Request
from router.relay.heads import (
    Ending,
    Refused,
    authority,
    led_back,
    origin_target,
    reply_bytes,
    request_head,
    request_shape,
    response_ending,
    response_head,
)

NAMES = st.from_regex(rb"[a-z][a-z0-9-]{0,20}", fullmatch=True)
VALUES = st.from_regex(rb"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
FRAMING = {b"host", b"content-length", b"transfer-encoding"}


@given(FIELDS, st.integers(0, 10))
def test_a_written_request_is_read_by_h11_as_one_request(
    fields: list[tuple[bytes, bytes]], size: int
) -> None:
    request = Request(b"POST", b"/v1/completions", fields)
    head = request_head(request, Attempt("replica", 8000), size)
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + bytes(size))
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    framing = [(name, value) for name, value in event.headers if name in FRAMING]
    assert framing == [(b"host", b"replica:8000"), (b"content-length", b"%d" % size)]
    if size:
        body = connection.next_event()
        assert isinstance(body, h11.Data) and bytes(body.data) == bytes(size)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    assert connection.trailing_data[0] == b""


@pytest.mark.parametrize(
    ("host", "port", "is_tls", "value"),
    [
        ("a", 8000, False, b"a:8000"),
        ("a", 80, False, b"a"),
        ("a", 443, True, b"a"),
        ("a", 443, False, b"a:443"),
        ("::1", 8000, False, b"[::1]:8000"),
    ],
)
def test_a_host_field_has_the_port_unless_it_is_the_schemes(
    host: str, port: int, is_tls: bool, value: bytes
) -> None:
    assert authority(host, port, is_tls) == value


def test_a_request_without_a_body_says_so_only_where_one_is_expected() -> None:
    attempt = Attempt("a", 80)
    assert request_head(Request(b"GET", b"/", []), attempt, 0) == (
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    )
    assert request_head(Request(b"POST", b"/", []), attempt, 0).endswith(
        b"content-length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a?b", b"/a?b"),
        (b"*", b"*"),
        (b"http://h/a?b", b"/a?b"),
        (b"HTTPS://h", b"/"),
        (b"http://h?b=/c", b"/?b=/c"),
    ],
)
def test_targets_become_paths(target: bytes, path: bytes) -> None:
    assert origin_target(target) == path


def test_an_expectation_of_an_http_1_0_client_is_not_answered() -> None:
    headers = [(b"expect", b"100-continue"), (b"content-length", b"4")]
    assert not request_shape("1.0", headers).expects_continue
    assert request_shape("1.1", [(b"host", b"x"), *headers]).expects_continue


def test_a_coding_in_a_second_field_is_refused() -> None:
    chunked = (b"transfer-encoding", b"chunked")
    with pytest.raises(Refused) as refused:
        request_shape("1.1", [(b"host", b"x"), chunked, chunked])
    assert refused.value.reply.status == 400


@pytest.mark.parametrize(
    ("method", "status", "headers", "ending"),
    [
        (b"GET", 200, [(b"content-length", b"3")], (Ending.COUNTED, 3)),
        (b"GET", 200, [(b"transfer-encoding", b"Chunked")], (Ending.CHUNKED, 0)),
        (b"GET", 200, [], (Ending.CLOSED, 0)),
        (b"HEAD", 200, [(b"content-length", b"3")], (Ending.EMPTY, 0)),
        (b"GET", 204, [], (Ending.EMPTY, 0)),
        (b"GET", 304, [(b"content-length", b"3")], (Ending.EMPTY, 0)),
        (b"GET", 200, [(b"content-length", b"3"), (b"content-length", b"3")], None),
        (b"GET", 200, [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")], None),
        (b"GET", 200, [(b"content-length", b"-3")], None),
        (b"GET", 200, [(b"transfer-encoding", b"gzip")], None),
    ],
)
def test_a_responses_end_is_told_by_its_head(
    method: bytes, status: int, headers: list[tuple[bytes, bytes]], ending: tuple[int, int] | None
) -> None:
    assert response_ending(method, status, headers) == ending


def test_a_response_head_loses_what_is_hop_by_hop_and_keeps_its_framing() -> None:
    headers = [
        (b"connection", b"close, x-a, content-length"),
        (b"keep-alive", b"timeout=5"),
        (b"x-a", b"1"),
        (b"content-length", b"3"),
        (b"x-b", b"2"),
    ]
    head = response_head(
        200, b"Fine", headers, [(b"x-why", b"so")], is_closing=False, drops_chunking=False
    )
    assert head == b"HTTP/1.1 200 Fine\r\ncontent-length: 3\r\nx-b: 2\r\nx-why: so\r\n\r\n"


def test_what_is_added_replaces_what_the_replica_says_of_the_same_name() -> None:
    headers = [(b"x-why", b"forged"), (b"content-length", b"3"), (b"x-why", b"again")]
    added = [(b"x-who", b"a"), (b"x-why", b"so")]
    head = response_head(200, b"", headers, added, is_closing=False, drops_chunking=False)
    assert head == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nx-who: a\r\nx-why: so\r\n\r\n"


@pytest.mark.parametrize(
    "prefix,location,led",
    [
        (b"", b"http://replica:8000/v1/x?y", b"/v1/x?y"),
        (b"", b"HTTPS://Replica:8000/v1/x", b"/v1/x"),
        (b"", b"http://other:8000/v1/x", b"http://other:8000/v1/x"),
        (b"", b"http://replica:8000//x", b"http://replica:8000//x"),
        (b"", b"/v1/x", b"/v1/x"),
        (b"", b"../x", b"../x"),
        (b"/base", b"http://replica:8000/base/v1/x", b"/v1/x"),
        (b"/base", b"/base/v1/x", b"/v1/x"),
        (b"/base", b"http://replica:8000/bases", b"http://replica:8000/bases"),
    ],
)
def test_a_redirect_to_the_replica_itself_leads_back_here(
    prefix: bytes, location: bytes, led: bytes
) -> None:
    attempt = Attempt("replica", 8000, False, prefix)
    headers = [(b"x", b"1"), (b"location", location)]
    assert led_back(headers, attempt) == [(b"x", b"1"), (b"location", led)]


def test_a_reply_to_head_has_a_length_and_no_body() -> None:
    answer = reply_bytes(Reply(200, b"body", ()), b"HEAD", is_closing=True)
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
