"""What users of other routers complain about, one test each, over the real router.

Named after the complaints. Replicas are the standard library's HTTP server, clients its HTTP
client or a bare socket; the router is all of it, on real loopback sockets.

Past 400 lines because each complaint has its test here, named after it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from router.announcer import Announcer
from router.asks import Ask
from router.outcome import Decision, FleetView, ReplicaView
from router.policies import RADIX_ABSOLUTE
from router.registry import AnnouncedReplica
from sharedfs_backend import Store
from sharedfs_backend.files import LocalFiles
from sharedfs_backend.namespace import open_namespace
from sharedfs_backend.settings import Settings as StoreSettings
from tests.router.service.fakes import (
    FakeReplica,
    Running,
    chat,
    launched,
    replicas,
    router,
    until,
)

LONG = "All of them share this sentence of the system prompt. " * 80


def view(running: Running) -> FleetView:
    return running.on_loop(lambda: running.app.fleet.view(time.monotonic()))


def row(running: Running, name: str) -> ReplicaView:
    return next(one for one in view(running).replicas if one.replica == name)


def counters(running: Running) -> dict[str, float]:
    text = running.ask("/metrics").body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("sharedfs_router_"): float(value) for name, _, value in lines}


def test_state_is_bounded_under_prefix_churn() -> None:
    """A million distinct blocks through one fleet: what is remembered is what caches can hold."""
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        fleet = running.app.fleet

        def churn() -> int:
            for number in range(2000):
                blocks = range(number << 20, (number << 20) + 1000)
                decision = fleet.choose(Ask(blocks, 128.0, 128_000), float(number))
                assert isinstance(decision, Decision)
                fleet.first_byte(decision.ticket, number + 0.5)
                fleet.ended(decision.ticket, number + 0.6, None)
            return fleet.view(2000.0).tree_blocks

        constants = fleet.constants
        held = (constants.gpu_tokens + constants.host_tokens) / 128 + constants.shared_blocks
        assert running.on_loop(churn) <= held + 1000


def test_load_is_always_part_of_the_score() -> None:
    """A replica that holds the whole prompt, but is busy for longer than computing it anew takes,
    is not chosen."""
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        first = running.chat(LONG).replica
        holder = next(each for each in pair if each.id == first)
        assert running.chat(LONG).replica == first
        holder.script.hold = threading.Event()
        connection = running.connect()
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(chat("another " * 200_000)).encode()
        )
        until(lambda: row(running, first).in_flight == 1)
        assert running.chat(LONG).replica != first
        holder.script.hold.set()
        connection.getresponse().read()
        until(running.settled)


def test_no_imbalance_switches_affinity_off_for_the_fleet() -> None:
    """One replica has far more to do than the others, which keep the prompts they hold."""
    with replicas(3) as three, router(*(each.url for each in three)) as running:
        running.wait_ready(3)
        texts = [f"{number} {LONG}" for number in range(2)]
        holders = [running.chat(text).replica for text in texts]
        busy = next(each for each in three if each.id not in holders)
        hold = busy.script.hold = threading.Event()
        others = [each.id for each in three if each is not busy]
        for name in others:
            running.ask(f"/replicas/{name}/drain", method="POST")
        for _ in range(RADIX_ABSOLUTE + 1):  # where others switch
            running.connect().request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: row(running, busy.id).in_flight > RADIX_ABSOLUTE)
        for name in others:
            running.ask(f"/replicas/{name}/drain", method="DELETE")
        for _ in range(4):
            assert [running.chat(text).replica for text in texts] == holders
        hold.set()
        until(running.settled)


def test_a_shared_system_prompt_does_not_attract_all_traffic() -> None:
    with replicas(4) as four, router(*(each.url for each in four)) as running:
        running.wait_ready(4)
        hold = threading.Event()
        for each in four:
            each.script.hold = hold
        for number in range(16):
            body = json.dumps(chat(f"{LONG} and question {number} " + str(number) * 4000)).encode()
            running.connect().request("POST", "/v1/chat/completions", body)
            until(partial(_has_reserved, running, number + 1))
        shares = [len(each.prompts()) for each in four]
        hold.set()
        assert max(shares) <= 8 and min(shares) >= 1


def _has_reserved(running: Running, count: int) -> bool:
    return view(running).reservations == count


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
def test_4xx_never_counts_against_a_replica(status: int) -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.status = status
        assert {running.chat().status for _ in range(8)} == {status}
        assert row(running, one.id).state.value == "ready"
        assert running.settled()


def test_a_retry_is_made_at_once_on_another_replica_before_the_first_byte() -> None:
    """Also when the replica had already sent its head, as vLLM does before prefill."""
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        hold = threading.Event()
        for each in pair:
            each.script.hold, each.script.head_first, each.script.cut_after = hold, True, 0
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: any(each.prompts() for each in pair))
        victim = next(each for each in pair if each.prompts())
        other = next(each for each in pair if each is not victim)
        other.script.cut_after = None
        hold.set()
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read().endswith(b"data: [DONE]\n\n")
        assert answer.headers["x-sharedfs-replica"] == other.id
        assert "retries=1" in (answer.headers["x-sharedfs-reason"] or "")
        until(running.settled)


def test_a_retry_is_never_made_after_the_first_byte() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        for each in pair:
            each.script.cut_after = 2
        with pytest.raises(Exception, match="IncompleteRead"):
            running.chat()
        assert sum(len(each.prompts()) for each in pair) == 1
        until(running.settled)


def test_a_client_that_disconnects_during_prefill_frees_the_replica() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.hold = threading.Event()
        one.script.head_first = True
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: row(running, one.id).in_flight == 1)
        until(lambda: len(one.prompts()) == 1)
        connection.close()
        until(lambda: one.left == ["/v1/chat/completions"])
        until(lambda: row(running, one.id).in_flight == 0)
        assert running.settled()


def test_a_stream_is_not_buffered() -> None:
    """The client has the first chunks while the replica holds back the others."""
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        go_on = threading.Event()
        one.script.hold_after = (2, go_on)
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        answer = connection.getresponse()
        assert b'"index": 0' in answer.readline() + answer.readline()
        assert b'"index": 1' in answer.readline() + answer.readline()
        go_on.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_body_is_not_copied_a_second_time() -> None:
    """The router's own process grows by one body, not by two. (What has a prompt is also read,
    for a while.)"""
    with replicas(1) as (one,), launched("--replicas", one.url) as running:
        running.wait_ready(1)
        running.ask("/v1/audio", {"small": 1})
        before = _peak_bytes(running.process.pid)
        body = json.dumps({"audio": "x" * (48 << 20)}).encode()
        connection = running.connect()
        connection.request("POST", "/v1/audio", body)
        assert connection.getresponse().read() and one.seen[-1].body == body
        assert _peak_bytes(running.process.pid) - before < 1.5 * len(body)


def _peak_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


def test_there_is_no_nagle_delay() -> None:
    """Both sides of the relay have TCP_NODELAY set."""
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.hold = threading.Event()
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: len(one.prompts()) == 1)
        ports = {running.port, one.server_address[1]}
        found = [each for each in _sockets() if _ends(each) & ports and each.getsockname()[1]]
        delays = {
            each.getsockname()[1]: each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in found
            if _ends(each) & ports and each is not connection.sock
        }
        for each in found:
            each.close()
        one.script.hold.set()
        connection.getresponse().read()
        assert delays.get(running.port) == 1  # the client's side
        upstream = [delay for port, delay in delays.items() if port not in ports]
        assert 1 in upstream  # the replica's side


def _sockets() -> list[socket.socket]:
    """Connected TCP sockets of this process, as duplicates."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            each = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        try:
            each.getpeername()
            is_tcp = each.family == socket.AF_INET and each.type == socket.SOCK_STREAM
        except OSError:
            is_tcp = False
        if is_tcp:
            found.append(each)
        else:
            each.close()
    return found


def _ends(each: socket.socket) -> set[int]:
    return {each.getsockname()[1], each.getpeername()[1]}


def test_bodies_of_40_mib_pass() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        answer = running.chat("y" * (40 << 20))
        assert answer.status == 200 and len(one.prompts()[0].body) > 40 << 20


def test_health_checks_never_reset_load_counters() -> None:
    """The replica fails its probes and recovers while a request is under way."""
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        hold = one.script.hold = threading.Event()
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: row(running, one.id).in_flight == 1)
        one.script.health = 503
        until(lambda: row(running, one.id).state.value == "down")
        assert row(running, one.id).in_flight == 1
        one.script.health = 200
        running.wait_ready(1)
        assert row(running, one.id).in_flight == 1
        hold.set()
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
        until(lambda: row(running, one.id).in_flight == 0)


def test_a_replica_that_hangs_keeps_nobody_waiting_once_its_probes_say_so() -> None:
    """Its requests would wait for half an hour; the other one answers them instead."""
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        hold = threading.Event()
        for each in pair:
            each.script.hold = hold
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: any(each.prompts() for each in pair))
        hung, well = sorted(pair, key=lambda each: not each.prompts())
        well.script.hold = None
        hung.script.health = 0
        answer = connection.getresponse()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert answer.headers["x-sharedfs-replica"] == well.id
        assert "retries=1" in answer.headers["x-sharedfs-reason"]


def test_a_replica_that_hangs_is_waited_for_where_there_is_no_other() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        hold = one.script.hold = threading.Event()
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        until(lambda: row(running, one.id).in_flight == 1)
        one.script.health = 0
        until(lambda: row(running, one.id).state.value == "down")
        hold.set()
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")


def test_draining_a_replica_cuts_no_stream() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        go_on = threading.Event()
        for each in pair:
            each.script.hold_after = (1, go_on)
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        answer = connection.getresponse()
        answer.readline()
        name = answer.headers["x-sharedfs-replica"]
        assert running.ask(f"/replicas/{name}/drain", method="POST").status == 200
        go_on.set()
        assert {running.chat().replica for _ in range(6)} == {
            each.id for each in pair if each.id != name
        }
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_replicas_join_and_leave_through_a_list_file(tmp_path: Path) -> None:
    """The same file is read again while the router runs: no restart, no signal."""
    path = tmp_path / "replicas"
    with replicas(2) as (one, two):
        path.write_text(f"{one.url}  # the first\n")
        with router(replica_file=str(path), policy="round-robin") as running:
            running.wait_ready(1)
            path.write_text(f"# both\n{one.url}\n{two.url}\n")
            running.wait_ready(2)
            assert {running.chat().replica for _ in range(4)} == {one.id, two.id}
            path.write_text(f"{two.url}\n")
            running.wait_ready(1)
            assert {running.chat().replica for _ in range(4)} == {two.id}
            assert not any(one.id in series for series in counters(running))
            path.write_text("")  # half-written: not an order to send everybody away
            until(lambda: counters(running)["list_errors_total"] >= 1)
            assert running.chat().replica == two.id


def test_a_list_at_a_url_is_read_again_while_running() -> None:
    with (
        replicas(2) as (one, two),
        _Served(one.url) as served,
        router(replica_file=served.url) as running,
    ):
        running.wait_ready(1)
        served.text = f"{one.url}\n{two.url}\n"
        running.wait_ready(2)


class _Served:
    """Serves one text."""

    def __init__(self, text: str) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        self.text = text

        class Handler(BaseHTTPRequestHandler):
            def log_message(handler, format: str, *args: object) -> None:
                """Silent."""

            def do_GET(handler) -> None:
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(self.text.encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/list"

    def __enter__(self) -> _Served:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_replicas_join_and_leave_through_files_in_the_namespace(tmp_path: Path) -> None:
    root = tmp_path / "namespace"
    with replicas(2) as pair, Store(str(root)), router(namespace=str(root)) as running:
        announcers = [_announcer(root, each) for each in pair]
        for announcer in announcers:
            announcer.renew(0.0)
        running.wait_ready(2)
        announcers[0].withdraw()
        running.wait_ready(1)
        assert {running.chat().replica for _ in range(4)} == {pair[1].id}


def _announcer(root: Path, replica: FakeReplica) -> Announcer:
    settings = StoreSettings(root=str(root))
    files = LocalFiles(settings.root)
    found = open_namespace(files, settings, create=False)
    record = AnnouncedReplica(announcer="0" * 16, url=replica.url, model="m")
    return Announcer(files, found.seal, found.profile, record, os.urandom)


def test_several_routers_work_at_once() -> None:
    """Neither knows of the other; load they did not make comes from the replicas' own metrics."""
    with replicas(2) as pair:
        urls = [each.url for each in pair]
        with router(*urls) as one, router(*urls) as other:
            one.wait_ready(2)
            other.wait_ready(2)
            favourite = other.chat(LONG).replica
            busy, idle = sorted(pair, key=lambda each: each.id != favourite)
            busy.script.metrics = (
                'vllm:num_requests_running{engine="0"} 3.0\n'
                'vllm:num_requests_waiting{engine="0"} 40.0\n'
            )
            until(lambda: row(other, busy.id).pending_s > row(other, idle.id).pending_s)
            assert {other.chat(f"{number}" * 3000).replica for number in range(4)} == {idle.id}
            assert one.chat().status == 200


def test_what_was_decided_and_why_is_in_a_header_and_a_counter() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        answer = running.chat(LONG)
        number = r"\d+\.\d"
        assert re.fullmatch(
            f"queue={number};local={number};shared={number};compute={number};total={number}"
            f";runner-up=127.0.0.1:\\d+,{number}",
            answer.headers["x-sharedfs-reason"],
        )
        known = counters(running)
        assert known[f'decisions_total{{policy="ttft",replica="{answer.replica}"}}'] == 1
        for part in ("queue", "local", "shared", "compute"):
            assert known[f'estimate_seconds_count{{part="{part}"}}'] == 1


def test_regret_is_a_metric() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        slow = threading.Event()
        for each in pair:
            each.script.hold = slow
        connection = running.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(LONG)).encode())
        until(lambda: view(running).reservations == 1)
        time.sleep(0.3)  # the chosen replica takes longer than the other was expected to
        slow.set()
        connection.getresponse().read()
        known = counters(running)
        assert known["regrets_total"] == 1 and known["regret_seconds_total"] > 0.05
