"""The router as a user starts it: signals, limits, keys, and what stops it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from router import supervisor
from router.relay.limits import DESCRIPTORS_KEPT
from router.settings import Settings, SettingsError
from tests.router.identity.byte_tokenizer import write_byte_tokenizer
from tests.router.service.fakes import chat, launched, replicas, router, until


def test_sigterm_lets_streams_finish_and_takes_no_new_connections() -> None:
    with replicas(1) as (one,), launched("--replicas", one.url) as running:
        running.wait_ready(1)
        one.script.hold_after = (1, go_on := threading.Event())
        _, answer = running.stream()
        running.process.send_signal(signal.SIGTERM)
        until(lambda: any("draining" in line for line in running.said))
        until(lambda: _refuses(running.port))
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert running.process.wait(20) == 0


def _refuses(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_the_drain_at_once(workers: str) -> None:
    more = ("--drain-seconds", "600", "--workers", workers)
    with replicas(1) as (one,), launched("--replicas", one.url, *more) as running:
        running.wait_ready(1)
        one.script.hold = hold = threading.Event()
        running.connect().request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: len(one.prompts()) == 1)
        running.process.send_signal(signal.SIGTERM)
        until(lambda: sum("draining" in line for line in running.said) == int(workers))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        hold.set()


@pytest.fixture
def heard_hangups() -> Iterator[None]:
    """Who runs the tests may ignore SIGHUP (nohup), and so would what they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.usefixtures("heard_hangups")
def test_a_terminal_that_hangs_up_more_than_once_lets_streams_finish(workers: str) -> None:
    with replicas(1) as (one,), launched("--replicas", one.url, "--workers", workers) as running:
        until(lambda: running.ask("/replicas").json()["workers"] == int(workers))
        running.wait_ready(1)
        one.script.hold_after = (1, go_on := threading.Event())
        _, answer = running.stream()
        pid = running.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for _ in range(2):
            for process in (pid, *map(int, children)):
                with suppress(ProcessLookupError):  # a worker without a stream has drained
                    os.kill(process, signal.SIGHUP)
            until(lambda: sum("draining" in line for line in running.said) == int(workers))
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert running.process.wait(20) == 0


def test_a_process_that_is_told_to_end_while_it_starts_has_ended_well() -> None:
    waiting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait(20)
    assert supervisor._end([waiting, done], 20.0, threading.Event()) == 0


def test_it_has_as_many_descriptors_as_the_system_allows() -> None:
    with replicas(1) as (one,), launched("--replicas", one.url) as running:
        now = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        assert now[0] == now[1] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_clients_cannot_take_the_descriptors_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crowd of idle clients would make replicas seem to be down."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (DESCRIPTORS_KEPT + 20, 20_000))
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        idle = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(40)]
        relay = running.app.relay
        assert relay is not None
        idle[-1].settimeout(20)
        assert b" 503 " in idle[-1].recv(4096)
        for each in idle:
            each.close()
        until(lambda: running.on_loop(lambda: relay.connections) == 0)
        assert running.chat().status == 200


def test_a_start_that_hangs_ends_when_it_is_told() -> None:
    """A server of the list that says nothing hangs as a dead file system does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/list"
        process = subprocess.Popen([sys.executable, "-m", "router", "--replica-file", url])
        try:
            with silent.accept()[0]:
                process.send_signal(signal.SIGTERM)
                assert process.wait(4) == -signal.SIGTERM  # sooner than the list's own deadline
        finally:
            process.kill()
            process.wait()


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("inner\n")
    with (
        replicas(1) as (one,),
        launched(
            "--replicas", one.url, "--replica-key-file", str(path),
            environment={"SHAREDFS_ROUTER_API_KEY": "sesame"},
        ) as running,
    ):  # fmt: skip
        running.wait_ready(1)
        assert running.chat().status == 401
        key = {"authorization": "Bearer sesame"}
        assert running.ask("/v1/chat/completions", chat(), headers=key).status == 200
        assert one.prompts()[0].headers["authorization"] == "Bearer inner"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--namespace", "/x", "--secret-file", "{folder}/pipe"], "is a pipe: give an ordinary"),
        (["--namespace", "/x", "--secret-file", "{folder}/pipe", "--workers", "2"], "is a pipe"),
        (["--replicas", "http://a:1", "--api-key-file", "/dev/zero"], "key is empty or not"),
        ([], "say where the replicas are"),
        (["--replicas", "http://a:1", "--namespace", "/x"], "exactly one"),
        (["--replicas", "nonsense://a"], "--replicas"),
        (["--replica-file", "/nowhere/at/all"], "list of replicas"),
        (["--replica-file", "{folder}/pipe"], "is a pipe: give an ordinary file"),
        (["--replica-file", "{folder}"], "is a directory: give an ordinary file"),
        (["--replica-file", "/dev/zero"], "is a device: give an ordinary file"),
        (["--replica-file", "{folder}/pipe", "--workers", "2"], "is a pipe"),
        (["--replicas", "http://a:1", "--workers", "65"], "from 1 to 64"),
        (["--replicas", "http://a:1", "--policy", "best"], "least-requests"),
        (["--replicas", "http://a:1", "--workers", "1000"], "from 1 to 64"),
        (["--replicas", "http://a:1", "--api-key-file", "/nowhere"], "key's file"),
        (["--replica-file", "http://[bad"], "list of replicas"),
        (["--namespace", "relative"], "absolute path"),
        (["--namespace", "relative", "--tokenizer", "{tokenizer}"], "absolute path"),
        (["--replicas", "http://a:1", "--model", "m"], "--namespace"),
        (["--replicas", "http://a:1", "--body-mib-max", "0"], "--body-mib-max 0: from 1 to 4096"),
        (["--replicas", "http://a:1", "--host", "no host"], "--host"),
    ],
)
def test_what_is_wrong_ends_the_start_with_what_to_do(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    write_byte_tokenizer(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    arguments = [argument.format(tokenizer=tmp_path, folder=tmp_path) for argument in arguments]
    ended = subprocess.run(
        [sys.executable, "-m", "router", "--host", "127.0.0.1", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2 and says in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("body_bytes_max", 1), ("slo_seconds", 0.0), ("retries_max", 99),
     ("health_path", "health"), ("health_path", "/a b"), ("health_path", "/a\r\nx: y"),
     ("api_key", ""), ("replica_key", "a\nb"), ("workers", 0)],
)  # fmt: skip
def test_a_setting_out_of_its_bounds_is_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=re.escape(name.partition("_")[0])):
        Settings(replicas=("http://a:1",), **{name: value})  # type: ignore[arg-type]  # wrong
