"""Lists of replicas as text, and following one while it changes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from router.replicas import REPLICAS_MAX, Replica, ReplicaError, listed, replica_at
from router.sources import FixedList, Follower, ListFile, Listing, ListUrl


@pytest.mark.parametrize(
    ("url", "replica"),
    [
        ("http://a:8000", Replica("a:8000", "a", 8000)),
        ("a:8000", Replica("a:8000", "a", 8000)),
        ("http://a", Replica("a:80", "a", 80)),
        ("https://a", Replica("a:443", "a", 443, True)),
        ("http://a:1/x/y/", Replica("a:1/x/y", "a", 1, False, "/x/y")),
        ("http://[::1]:8000", Replica("[::1]:8000", "::1", 8000)),
    ],
)
def test_a_url_names_a_replica(url: str, replica: Replica) -> None:
    assert replica_at(url) == replica
    assert replica_at(replica.url) == replica


@pytest.mark.parametrize(
    "url",
    ["", "http://", "ftp://a", "http://a:port", "http://a:8000?x=1", "http://u:p@a", "http://a b",
     "http://a:99999", "http://a:0", "http://a..b:80", f"http://{'a' * 64}.b",
     "http://a:1/v1", "http://a:1/gate/v1/", "http://ä:1", "http://a/\r\nx: y"],
)  # fmt: skip
def test_what_is_no_url_of_a_replica_is_refused(url: str) -> None:
    with pytest.raises(ReplicaError):
        replica_at(url)


def test_a_list_has_comments_and_empty_lines_and_says_each_replica_once() -> None:
    found = listed(["# ours", "", "http://a:1 # first", "http://b:2", "a:1"])
    assert list(found) == ["a:1", "b:2"]


def test_a_list_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes("http://a:1".encode("utf-8-sig"))
    assert list(ListFile(tmp_path / "list").read()) == ["a:1"]


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["http://a:1", "nonsense://"]])
def test_a_list_without_replicas_or_with_a_bad_line_is_refused_whole(lines: list[str]) -> None:
    with pytest.raises(ReplicaError):
        listed(lines)


def test_a_list_has_a_limit() -> None:
    with pytest.raises(ReplicaError):
        listed([f"http://a:{1 + number}" for number in range(REPLICAS_MAX + 1)])


class Changing:
    """A source as a test writes it."""

    can_change = True

    def __init__(self, *contents: Listing | Exception) -> None:
        self.contents = list(contents)

    def read(self) -> Listing:
        content = self.contents.pop(0)
        if isinstance(content, Exception):
            raise content
        return content


ONE, TWO = listed(["a:1"]), listed(["a:1", "b:2"])


def followed(*contents: Listing | Exception) -> tuple[list[Listing], list[str]]:
    lists: list[Listing] = []
    troubles: list[str] = []
    source = Changing(*contents)
    follower = Follower(source, ONE, on_list=lists.append, on_trouble=troubles.append)
    while source.contents:
        follower.look()
    return lists, troubles


def test_a_new_list_counts_when_two_looks_agree() -> None:
    assert followed(ONE, TWO) == ([], [])
    assert followed(ONE, TWO, TWO, TWO) == ([TWO], [])


def test_a_list_caught_half_written_is_never_used() -> None:
    half = listed(["http://a:1", "http://b"])
    assert followed(half, TWO, TWO) == ([TWO], [])


def test_a_list_that_cannot_be_read_changes_nothing_and_is_told_once() -> None:
    trouble = OSError("gone")
    assert followed(trouble, trouble, ONE, trouble) == ([], ["gone", "gone"])


HEAD_OF_MANY = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
HEAD_OF_CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def served(answer: bytes) -> Listing:
    """What a list's server that answers these bytes is understood to say."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ListUrl(f"http://127.0.0.1:{server.getsockname()[1]}/list").read()
        finally:
            thread.join()


def test_a_list_may_be_served() -> None:
    body = b"http://a:1\nhttp://b:2\n"
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    assert served(answer) == TWO


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00garbage\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\nhttp://a:1\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\nhttp://a:1\n",
        b"HTTP/1.1 404 No\r\ncontent-length: 10\r\n\r\nhttp://a:1",
        b"HTTP/1.1 302 Found\r\nlocation: ftp://127.0.0.1:9/x\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: file:///etc/hostname\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\nhttp://a:1\n\r\n",
    ],
    ids=["no HTTP", "nothing", "torn", "a head without end", "an error", "ftp", "a file", "cut"],
)
def test_what_is_no_list_served_changes_nothing(answer: bytes) -> None:
    with pytest.raises((ReplicaError, OSError)):
        served(answer)


@pytest.mark.parametrize("dripping", [b"HTTP/1.1 200 OK\r\nx: ", HEAD_OF_MANY, HEAD_OF_CHUNKS])
def test_a_list_that_comes_too_slowly_is_not_waited_for(
    dripping: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However regularly a byte comes, in its head or its body."""
    monkeypatch.setattr("router.sources.URL_DEADLINE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(
            target=_drip, args=(server, dripping, stopping := threading.Event())
        )
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/list"
        with pytest.raises(ReplicaError, match="not here within"):
            ListUrl(url).read()
        stopping.set()
        thread.join()


def _drip(server: socket.socket, begins: bytes, stopping: threading.Event) -> None:
    """Sends for at most 20 s, unless nobody takes it any more: then it returns."""
    line, _ = server.accept()
    with line, suppress(OSError):
        line.recv(65536)
        line.sendall(begins)
        piece = b"2\r\n# \r\n" if begins is HEAD_OF_CHUNKS else b"#"
        for _ in range(1000):
            line.sendall(piece)
            if stopping.wait(0.02):
                return


def test_a_silent_address_leaves_time_for_the_names_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.sources.URL_DEADLINE_SECONDS", 4.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:
        first.connect(full.getsockname())  # nobody accepts it: no other gets an answer
        resolved = socket.getaddrinfo
        silent = resolved("127.0.0.1", full.getsockname()[1], type=socket.SOCK_STREAM)
        foreign = [(socket.AF_X25, socket.SOCK_STREAM, 0, "", ("1", 1))]
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, port, **more: foreign + silent + resolved(host, port, **more),
        )
        body = b"http://a:1\nhttp://b:2\n"
        assert served(b"HTTP/1.1 200 OK\r\ncontent-length: 22\r\n\r\n" + body) == TWO


def test_a_list_may_be_redirected() -> None:
    body = b"http://a:1\nhttp://b:2\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for answer in (
                b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:%d/x\r\n\r\n" % port,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
                % (len(body), body),
            ):
                line, _ = server.accept()
                with line:
                    line.recv(65536)
                    line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert ListUrl(f"http://127.0.0.1:{port}/list").read() == TWO
        thread.join()


def test_a_mistake_of_ours_ends_no_following() -> None:
    source = Changing(KeyError("a mistake"), TWO, TWO, TWO, *[TWO] * 1000)
    came = threading.Event()
    follower = Follower(
        source, ONE, on_list=lambda _: came.set(), on_trouble=print, every_seconds=0.001
    )
    follower.start()
    assert came.wait(20)
    follower.stop()


def test_a_fixed_list_is_not_followed() -> None:
    follower = Follower(FixedList(["a:1"]), ONE, on_list=lambda _: None, on_trouble=print)
    follower.start()
    follower.stop()
    assert not FixedList.can_change
