"""The announcing command: what it finds out, when it renews, and that it withdraws."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from router import announce
from router.registry import AnnouncedReplica, Registry, read_replicas
from sharedfs_backend.files import LocalFiles
from sharedfs_backend.layout import RealmDescriptor, Seal
from sharedfs_backend.namespace import open_namespace
from sharedfs_backend.settings import Settings

URL = "http://node:8000"
STATUS = {"chunk_size": 128, "hash_algorithm": "blake3"}


class Engine:
    """Answers as vLLM and LMCache do. `alive` False: nothing answers."""

    def __init__(self, model: str = "org/model") -> None:
        self.alive = True
        card = {"id": "served", "root": model}
        self.pages: dict[str, Any] = {
            URL + "/health": None,
            URL + "/v1/models": {"data": [{"id": "lora", "parent": "x"}, card]},
            "http://lm:9/status": STATUS,
        }

    def ask(self, url: str) -> bytes | None:
        if not self.alive or url not in self.pages:
            return None
        return b"" if self.pages[url] is None else json.dumps(self.pages[url]).encode()


def options(root: Path, *more: str) -> Any:
    words = ["--namespace", str(root), "--url", URL + "/", "--lmcache-url", "http://lm:9", *more]
    return announce._arguments(words)


def run(root: Path, engine: Engine, steps: list[Callable[[], None]], *more: str) -> list[float]:
    """Announce; at each wait the next step is taken, after the last it is time to go."""
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        steps.pop(0)()
        return not steps

    announce.keep_announced(options(root, *more), engine.ask, wait, lambda: sum(waits))
    return waits


@pytest.fixture
def root(tmp_path: Path) -> Path:
    open_namespace(LocalFiles(str(tmp_path)), Settings(root=str(tmp_path)))
    return tmp_path


def announced(root: Path) -> list[AnnouncedReplica]:
    return read_replicas(str(root))


def test_it_announces_what_engine_and_cache_server_say(root: Path) -> None:
    seen: list[AnnouncedReplica] = []
    run(root, Engine(), [lambda: seen.extend(announced(root))])
    (replica,) = seen
    assert (replica.url, replica.model) == (URL, "org/model")
    assert (replica.chunk_tokens, replica.hash_algorithm) == (128, "blake3")


@pytest.mark.parametrize("url", ["node:8000", "http://node:8000", "http://node:8000/"])
def test_a_url_may_lack_its_scheme(root: Path, url: str) -> None:
    assert announce._arguments(["--namespace", str(root), "--url", url]).url == URL


def test_a_url_that_is_none_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        announce.main(["--namespace", str(root), "--url", "ftp://node"])
    assert ended.value.code == 2 and "http://host:8000" in capsys.readouterr().err


def test_it_says_once_that_it_waits(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.alive = False
    caplog.set_level("INFO", logger="router.announce")
    run(root, engine, [lambda: None] * 3)
    assert [record.message for record in caplog.records if URL in record.message] == [
        f"waiting: {URL} does not answer /health, or names no model"
    ]


def test_the_realm_is_the_one_the_store_would_open(root: Path) -> None:
    more = ("--model-identity", "id", "--shard", "s", "--serde", "z")
    realm = RealmDescriptor("id", True, "s", "z", "lmcache-mp-256").digest(Seal())
    seen: list[AnnouncedReplica] = []
    run(root, Engine(), [lambda: seen.extend(announced(root))], *more)
    assert seen[0].realm == realm.hex()


def test_without_the_hash_algorithm_no_realm_is_claimed(root: Path) -> None:
    engine, seen = Engine(), list[AnnouncedReplica]()
    del engine.pages["http://lm:9/status"]
    run(root, engine, [lambda: seen.extend(announced(root))])
    assert (seen[0].realm, seen[0].chunk_tokens) == ("", 0)


def test_it_asks_lmcache_until_it_knows_and_announces_that(root: Path) -> None:
    """A cache server often starts after its engine."""
    engine, seen = Engine(), list[AnnouncedReplica]()
    del engine.pages["http://lm:9/status"]

    def step(status: object) -> Callable[[], None]:
        def act() -> None:
            seen.extend(announced(root))
            engine.pages["http://lm:9/status"] = status

        return act

    half = {"chunk_size": 128, "hash_algorithm": None}
    steps = [step({"chunk_size": -1}), step(half), step({}), step(STATUS), step({}), step({})]
    waits = run(root, engine, steps, "--lease-seconds", "60")
    chunks = [(replica.chunk_tokens, replica.hash_algorithm) for replica in seen]
    assert chunks == [(0, ""), (0, ""), (128, ""), (128, ""), (128, "blake3"), (128, "blake3")]
    assert seen[-1].realm and len({replica.announcer for replica in seen}) == 1
    assert [replica.counter for replica in seen] == [1, 1, 2, 2, 3, 4]  # more only to say more
    assert waits == [2.0, 2.0, 2.0, 2.0, 15.0, 15.0]


def test_a_server_that_never_says_it_is_not_renewed_more_often(root: Path) -> None:
    engine, seen = Engine(), list[int]()
    del engine.pages["http://lm:9/status"]
    step: Callable[[], None] = lambda: seen.extend(r.counter for r in announced(root))  # noqa: E731
    run(root, engine, [step] * 9, "--lease-seconds", "32")
    assert seen == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_the_size_of_kv_comes_from_the_models_config(root: Path, tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({**config, "hidden_size": 64, "dtype": "float32"})
    )
    seen: list[AnnouncedReplica] = []
    run(root, Engine(str(model)), [lambda: seen.extend(announced(root))])
    assert seen[0].kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_it_renews_four_times_a_lease_and_withdraws(root: Path) -> None:
    counters: list[int] = []
    step: Callable[[], None] = lambda: counters.extend(r.counter for r in announced(root))  # noqa: E731
    waits = run(root, Engine(), [step] * 3, "--lease-seconds", "60")
    assert (waits, counters) == ([15.0] * 3, [1, 2, 3])
    assert announced(root) == []


def test_a_dead_engine_is_not_renewed_and_a_living_one_is_again(root: Path) -> None:
    engine, counters = Engine(), list[int]()

    def step(alive: bool) -> Callable[[], None]:
        def act() -> None:
            counters.extend(replica.counter for replica in announced(root))
            engine.alive = alive

        return act

    run(root, engine, [step(False), step(False), step(True), step(True), step(True)])
    assert counters == [1, 1, 1, 2, 3]


def test_before_the_engine_answers_nothing_is_announced(root: Path) -> None:
    engine, seen = Engine(), list[int]()
    engine.alive = False

    def wake() -> None:
        seen.append(len(announced(root)))
        engine.alive = True

    run(root, engine, [wake, lambda: seen.append(len(announced(root)))])
    assert seen == [0, 1]


def test_it_waits_for_the_namespace_its_replica_creates(tmp_path: Path) -> None:
    seen: list[int] = []

    def create() -> None:
        open_namespace(LocalFiles(str(tmp_path)), Settings(root=str(tmp_path)))

    run(tmp_path, Engine(), [create, lambda: seen.append(len(announced(tmp_path)))])
    assert seen == [1]


def test_a_wrong_argument_is_exit_status_2(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "NAMESPACE.json").write_text('{"kind": "other"}')
    for name in ("packs", "journals"):
        (root / name).rename(root / (name + "x"))
    assert announce.main(["--namespace", str(root), "--url", URL]) == 2
    assert "NAMESPACE.json" in capsys.readouterr().err


def test_a_secret_that_can_be_read_but_once_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(SystemExit, match="2"):
        options(root, "--secret-file", f"{root}/pipe")
    assert "is a pipe: give an ordinary file" in capsys.readouterr().err


def test_an_engine_that_drips_is_no_engine_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else SIGTERM would wait for its last byte, and the replica stay announced."""
    monkeypatch.setattr(announce, "ASK_SECONDS", 0.3)
    stopping = Event()

    def drip() -> None:
        line, _ = server.accept()
        with line, suppress(OSError):
            line.recv(65536)
            line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(1000):
                line.sendall(b"x")
                if stopping.wait(0.02):
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        assert announce.ask_over_http(url) is None
        stopping.set()
        thread.join()


class Page(BaseHTTPRequestHandler):
    knows_chunks = False

    def do_GET(self) -> None:
        data = b"" if self.path == "/health" else b'{"data": [{"id": "m", "root": "m"}]}'
        if self.path == "/status":
            data = json.dumps(STATUS).encode()
        self.send_response(200 if self.path != "/status" or type(self).knows_chunks else 503)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_the_command_announces_until_sigterm_and_then_withdraws(root: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    words = ["-m", "router.announce", "--namespace", str(root), "--url", url]
    words += ["--lmcache-url", url]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}  # must not be used
    with subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "announcing" in line:
                    break
            registry = Registry(LocalFiles(str(root)), Seal())
            while not registry.poll(0.0) and process.poll() is None:
                time.sleep(0.01)
            assert [seen.replica.chunk_tokens for seen in registry.poll(0.0)] == [0]
            Page.knows_chunks = True
            deadline = time.monotonic() + 60
            while not registry.poll(0.0)[0].replica.chunk_tokens and time.monotonic() < deadline:
                time.sleep(0.01)
            assert registry.poll(0.0)[0].replica.chunk_tokens == STATUS["chunk_size"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            server.shutdown()
            server.server_close()
            thread.join()
    assert announced(root) == []
