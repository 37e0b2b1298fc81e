"""Several processes on one port: each page covers all, and who dies or stands still is replaced."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from router import supervisor
from router.app import Place
from router.board import shared_board
from router.relay.server import RelayServer, serve
from router.service import Service
from tests.router.service.fakes import (
    all_ready,
    chat,
    children,
    is_replaced,
    launched,
    replicas,
    router,
    until,
)  # fmt: skip


def test_a_signal_to_every_process_of_a_job_cuts_no_stream() -> None:
    """As service managers and batch systems send it; the supervisor's own comes on top."""
    with replicas(1) as (one,), launched("--replicas", one.url, "--workers", "2") as running:
        until(lambda: all_ready(running.ask("/replicas").json()))
        one.script.hold_after = (1, go_on := threading.Event())
        _, answer = running.stream()
        for pid in children(running.process.pid):
            os.kill(pid, signal.SIGTERM)
        until(lambda: sum("draining" in line for line in running.said) == 2)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)  # it has passed it on
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert running.process.wait(20) == 0


def test_a_supervisor_that_is_killed_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    more = ("--replicas", "http://127.0.0.1:9", "--workers", "2")
    with launched(*more, environment=environment) as running:
        pids = children(running.process.pid)
        running.process.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert list(tmp_path.iterdir()) == []


def test_a_process_whose_supervisor_is_gone_before_it_runs_ends(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(20)
    with shared_board() as board:
        where = f"0:0:{board.descriptor}:{gone.pid}:{tmp_path}"
        ended = subprocess.run(
            [sys.executable, "-m", "router", "--replicas", "http://127.0.0.1:9", "--workers", "2"],
            env={**os.environ, "SHAREDFS_ROUTER_WORKER": where},
            pass_fds=(board.descriptor,), timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 0


FRUGAL = """
import errno, subprocess, time
from router import cli
started, first = [], cli.subprocess.Popen
def popen(*arguments, **more):
    started.append(None)
    if len(started) in (3, 4):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
    return first(*arguments, **more)
cli.subprocess.Popen = popen
cli.main()
"""


def test_a_process_that_cannot_be_started_again_now_is_later() -> None:
    """What had one killed may also deny a new one: no reason to end the others."""
    more = ("--replicas", "http://127.0.0.1:9", "--workers", "2")
    with launched(*more, program=("-c", FRUGAL)) as running:
        killed, _ = children(running.process.pid)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_replaced(running.process.pid, killed))
        assert sum("cannot be started" in line for line in running.said) == 2


def test_several_processes_serve_one_port_and_each_page_covers_all() -> None:
    with replicas(2) as pair:
        urls = ",".join(each.url for each in pair)
        with launched("--replicas", urls, "--workers", "3") as running:
            until(lambda: running.ask("/replicas").json()["workers"] == 3)
            until(lambda: all_ready(running.ask("/replicas").json()))
            for number in range(24):
                assert running.chat(f"{number}").status == 200
            for _ in range(6):  # whichever process is asked
                text = running.ask("/metrics").body.decode()
                assert 'requests_total{path="chat/completions",status="200"} 24.0' in text
                assert "sharedfs_router_workers 3.0" in text
            assert len(running.ask("/router/history").json()["decisions"]) == 24


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_on_which_several_processes_listen_is_taken(workers: str) -> None:
    """They share it with one another, not with another router."""
    more = ("--replicas", "http://127.0.0.1:9")
    with launched(*more, "--workers", "2") as running:
        command = [sys.executable, "-m", "router", "--host", "127.0.0.1", *more]
        ended = subprocess.run(
            [*command, "--port", str(running.port), "--workers", workers],
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 2 and "cannot listen" in ended.stderr


def test_draining_a_replica_reaches_every_process(tmp_path: Path) -> None:
    """Also where the directory for temporary files lies deeper than a socket's name may be long."""
    deep = tmp_path / "job" / ("a" * 120)
    deep.mkdir(parents=True)
    with replicas(2) as pair:
        urls = ",".join(each.url for each in pair)
        more = ("--replicas", urls, "--workers", "2")
        with launched(*more, environment={"TMPDIR": str(deep)}) as running:
            until(lambda: running.ask("/replicas").json()["workers"] == 2)
            until(lambda: all_ready(running.ask("/replicas").json()))
            running.ask(f"/replicas/{pair[0].id}/drain", method="POST")
            assert {running.chat(f"{number}").replica for number in range(16)} == {pair[1].id}


def test_a_process_that_diesis_replaced_and_the_others_end_with_the_supervisor() -> None:
    with replicas(1) as (one,), launched("--replicas", one.url, "--workers", "2") as running:
        killed, _ = children(running.process.pid)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_replaced(running.process.pid, killed))
        pids = children(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(30)
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_process_thatis_replaced_drains_whom_the_others_drain() -> None:
    with replicas(2) as pair:
        urls = ",".join(replica.url for replica in pair)
        with launched("--replicas", urls, "--workers", "2") as running:
            until(lambda: all_ready(running.ask("/replicas").json()))
            running.ask(f"/replicas/{pair[0].id}/drain", method="POST")
            for _ in range(2):  # both, one after the other
                killed = children(running.process.pid)[0]
                os.kill(killed, signal.SIGKILL)
                until(lambda killed=killed: is_replaced(running.process.pid, killed))  # type: ignore[misc]
                until(lambda: running.ask("/replicas").json()["workers"] == 2)
            assert {running.chat(f"{number}").replica for number in range(16)} == {pair[1].id}


def test_all_processes_run_the_code_the_first_was_started_with(tmp_path: Path) -> None:
    """Each of them compiled, where it is: not what lies in the current directory."""
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("raise RuntimeError('not this one')")
    sources = {"PYTHONPATH": str(Path(supervisor.__file__).parent.parent)}
    with (
        replicas(1) as (one,),
        launched(
            "--replicas", one.url, "--workers", "2",
            environment=sources, flags=["-P"], folder=tmp_path,
        ) as running,
    ):  # fmt: skip
        until(lambda: sum(", plain Python" in line for line in running.said) == 2)


def test_a_process_among_others_listens_once_it_has_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that the kernel gives to one just started must not find it without."""
    ready: list[int] = []

    async def listening(service: Service, **more: Any) -> RelayServer:
        ready.append(len(service.members.ready()))
        return await serve(service, **more)

    monkeypatch.setattr("router.app.serve", listening)
    with replicas(1) as (one,), router(one.url, place=Place(tmp_path)):
        assert ready == [1]


def test_a_process_that_listens_has_beaten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its silence counts: connections come from then on."""
    beats: list[int] = []
    with shared_board() as board:

        async def listening(service: Service, **more: Any) -> RelayServer:
            beats.append(board.beats(3))
            return await serve(service, **more)

        monkeypatch.setattr("router.app.serve", listening)
        with replicas(1) as (one,), router(one.url, place=Place(tmp_path, 3, board=board)):
            assert beats == [1]


def test_a_process_among_others_hears_what_they_are_told_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replicas(2) as (one, two):
        urls = (one.url, two.url)
        with router(*urls, place=Place(tmp_path, 1)) as other:
            other.wait_ready(2)
            drain = other.app.members.drain
            other.on_loop(lambda: drain(two.id, True))

            async def listening(service: Service, **more: Any) -> RelayServer:
                other.on_loop(lambda: (drain(one.id, True), drain(two.id, False)))
                return await serve(service, **more)

            monkeypatch.setattr("router.app.serve", listening)
            with router(*urls, place=Place(tmp_path, 0)) as late:
                members = late.on_loop(lambda: list(late.app.members))
                draining = [each.replica.id for each in members if each.is_draining]
                assert draining == [one.id]


def test_a_process_among_others_starts_with_their_list_while_none_can_be_read(
    tmp_path: Path,
) -> None:
    """One that died must come back also while somebody writes the list anew."""
    path, folder = tmp_path / "list", tmp_path / "processes"
    folder.mkdir()
    with replicas(2) as (one, two):
        path.write_text(f"{one.url}\n")
        with router(replica_file=str(path), place=Place(folder, 1)) as other:
            other.wait_ready(1)
            path.write_text("")
            with router(replica_file=str(path), place=Place(folder, 0)) as late:
                assert late.chat().replica == one.id
                path.write_text(f"{two.url}\n")
                until(lambda: late.on_loop(lambda: late.app.members.get(two.id)) is not None)


IMPATIENT = """
from router import cli, supervisor
cli.BEAT_SECONDS = 0.05
supervisor.RESTART_PAUSE_SECONDS, supervisor.SILENT_SECONDS, supervisor.GRACE_SECONDS = {}
cli.main()
"""
"""The router as it is started, with shorter waits: a look, a silence, a grace in seconds."""


def test_a_process_that_stands_stillis_replaced() -> None:
    program = ("-c", IMPATIENT.format("0.1, 4.0, 0.5"))
    with (
        replicas(1) as (one,),
        launched("--replicas", one.url, "--workers", "2", program=program) as running,
    ):
        stopped, _ = children(running.process.pid)
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: is_replaced(running.process.pid, stopped))
        until(lambda: running.ask("/replicas").json()["workers"] == 2)
        for _ in range(4):  # whichever process is asked
            text = running.ask("/metrics").body.decode()
            assert 'workers_replaced_total{cause="silent"} 1.0' in text
            assert 'workers_replaced_total{cause="died"} 0.0' in text
        assert sum("stands still" in line for line in running.said) == 2  # told, then killed


def test_a_process_that_comes_to_itself_when_told_to_end_lets_its_streams_finish() -> None:
    program = ("-c", IMPATIENT.format("0.1, 4.0, 60.0"))
    with (
        replicas(1) as (one,),
        launched("--replicas", one.url, "--workers", "2", program=program) as running,
    ):
        until(lambda: all_ready(running.ask("/replicas").json()))
        one.script.hold_after = (1, go_on := threading.Event())
        connection, answer = running.stream()
        pids = children(running.process.pid)
        stopped = next(pid for pid in pids if _has_connection(pid, connection))
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: any("stands still" in line for line in running.said))
        os.kill(stopped, signal.SIGCONT)
        until(lambda: any("draining" in line for line in running.said))
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        until(lambda: is_replaced(running.process.pid, stopped))


def test_a_machine_that_was_frozen_loses_no_process() -> None:
    """Nobody beat, but neither did the supervisor look."""
    program = ("-c", IMPATIENT.format("0.5, 5.0, 0.5"))
    with (
        replicas(1) as (one,),
        launched("--replicas", one.url, "--workers", "2", program=program) as running,
    ):
        pids = children(running.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.2)  # it has seen their last beats
        os.kill(running.process.pid, signal.SIGSTOP)
        time.sleep(6)  # longer than silence and grace
        killed, other = pids
        os.kill(killed, signal.SIGKILL)
        os.kill(running.process.pid, signal.SIGCONT)  # it wakes first, and looks
        until(lambda: is_replaced(running.process.pid, killed))
        os.kill(other, signal.SIGCONT)
        until(lambda: running.ask("/replicas").json()["workers"] == 2)
        assert other in children(running.process.pid)
        assert not any("stands still" in line for line in running.said)


def test_silence_is_counted_in_looks_and_from_the_first_beat_on() -> None:
    watched = supervisor.Watched(subprocess.Popen([sys.executable, "-c", ""]))
    watched.process.wait(20)
    assert [watched.look(0) for _ in range(100)] == [None] * 100  # it starts
    orders = [watched.look(beats) for beats in [1, 2, 3, *[4] * 36]]
    told = {at: order for at, order in enumerate(orders) if order}
    assert told == {33: signal.SIGTERM, 38: signal.SIGKILL}
    assert [watched.look(5)] + [watched.look(5) for _ in range(29)] == [None] * 30


def _has_connection(pid: int, connection: http.client.HTTPConnection) -> bool:
    """Whether the other end of a loopback connection is this process's."""
    port = connection.sock.getsockname()[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}")}
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    return any(f"socket:[{inode}]" in links for inode in inodes)


def test_a_key_from_a_pipe_reaches_all_processes_and_those_started_later() -> None:
    keys = [os.pipe(), os.pipe()]
    for (_, writes), text in zip(keys, (b"sesame\n", b"inner\n"), strict=True):
        os.write(writes, text)
        os.close(writes)
    reads = [reads for reads, _ in keys]
    with (
        replicas(1) as (one,),
        launched(
            "--replicas", one.url, "--workers", "2", "--api-key-file", f"/dev/fd/{reads[0]}",
            "--replica-key-file", f"/dev/fd/{reads[1]}", descriptors=reads,
        ) as running,
    ):  # fmt: skip
        key = {"authorization": "Bearer sesame"}
        for _ in range(2):  # both, one after the other
            killed = children(running.process.pid)[0]
            os.kill(killed, signal.SIGKILL)
            until(lambda killed=killed: is_replaced(running.process.pid, killed))  # type: ignore[misc]
            until(lambda: running.ask("/replicas", headers=key).json()["workers"] == 2)
        for _ in range(8):
            assert running.chat().status == 401
            assert running.ask("/v1/chat/completions", chat(), headers=key).status == 200
        assert {seen.headers["authorization"] for seen in one.prompts()} == {"Bearer inner"}
    for each in reads:
        os.close(each)
