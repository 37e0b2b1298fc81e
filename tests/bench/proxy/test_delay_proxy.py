"""The delay proxy over real sockets: bytes arrive whole, in order, later than they were sent, and
those in flight do not wait for each other. No test asserts how soon something came.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.proxy.delay import DelayProxy
from bench.proxy.gluster import Gluster, missing
from bench.proxy.process import ProxyProcess
from bench.throttle.available import is_mounted

PATIENCE_SECONDS = 30.0
SCRIPT = Path(__file__).resolve().parents[3] / "bench" / "proxy" / "dm_delay.sh"


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets; its threads end with the test."""
    server = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for thread in (accepting, *threads):
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def test_bytes_go_there_and_back_whole(echo: int) -> None:
    sent = random.Random(1).randbytes(5 << 20)
    with DelayProxy(echo, delay_ms=1.0) as proxy, connect(proxy.port) as connection:
        writer = threading.Thread(target=connection.sendall, args=(sent,))
        writer.start()
        assert exactly(connection, len(sent)) == sent
        writer.join(PATIENCE_SECONDS)


def test_a_round_trip_takes_the_delay_twice_and_the_delay_can_change(echo: int) -> None:
    with DelayProxy(echo, delay_ms=30.0) as proxy, connect(proxy.port) as connection:
        for delay in (30.0, 60.0):
            proxy.delay_ms = delay
            begun = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            assert time.monotonic() - begun >= 2 * delay / 1e3


def test_bytes_in_flight_do_not_wait_for_each_other(echo: int) -> None:
    """All are sent before the first comes back: a proxy that slept for each could not do that."""
    with DelayProxy(echo, delay_ms=400.0) as proxy, connect(proxy.port) as connection:
        connection.setblocking(False)
        for number in range(20):
            connection.sendall(bytes([number]))
            time.sleep(0.002)  # so that each is a piece of its own
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        connection.settimeout(PATIENCE_SECONDS)
        assert exactly(connection, 20) == bytes(range(20))


def test_the_end_of_one_direction_is_passed_on_after_its_bytes(echo: int) -> None:
    with DelayProxy(echo, delay_ms=5.0) as proxy, connect(proxy.port) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert exactly(connection, 100) == b"last words"


def test_a_refused_connection_is_closed(echo: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with DelayProxy(port) as proxy, connect(proxy.port) as connection:
        assert connection.recv(1) == b""


def test_nothing_is_left_when_it_is_closed(echo: int) -> None:
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with DelayProxy(echo) as proxy:
        with connect(proxy.port) as connection:
            connection.sendall(b"x")
            connection.recv(1)
        connect(proxy.port).close()
    end = time.monotonic() + PATIENCE_SECONDS
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)  # the echo server's own connections end when they notice
    assert threading.active_count() <= threads + 2
    assert len(os.listdir("/proc/self/fd")) <= fds + 2


def test_a_proxy_in_a_process_of_its_own_obeys_and_ends(echo: int) -> None:
    with ProxyProcess(echo) as proxy, connect(proxy.port) as connection:
        proxy.delay(40.0)
        begun = time.monotonic()
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        assert time.monotonic() - begun >= 0.08
        process = proxy._process
    assert process.returncode == 0


def test_the_dm_delay_script_says_how_it_is_used_and_changes_nothing_without_device_mapper(
    tmp_path: Path,
) -> None:
    usage = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and "start DIRECTORY MILLISECONDS" in usage.stderr
    if os.path.exists("/dev/mapper/control"):
        return  # it would work: that is for people to try
    refused = subprocess.run(
        [SCRIPT, "start", tmp_path / "d", "1"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1 and "dm_delay: " in refused.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.nightly
def test_two_glusterfs_clients_see_each_other_one_of_them_late(tmp_path: Path) -> None:
    if lacking := missing():
        pytest.skip(lacking)
    with Gluster(tmp_path / "g") as gluster, ProxyProcess(gluster.port) as proxy:
        near, far = gluster.mount("near", gluster.port), gluster.mount("far", proxy.port)
        (near / "f").write_bytes(b"hello")
        proxy.delay(50.0)
        begun = time.monotonic()
        assert (far / "f").read_bytes() == b"hello"
        assert time.monotonic() - begun >= 0.1
        assert (gluster.brick / "f").read_bytes() == b"hello"
        proxy.delay(0.0)
    assert not is_mounted(tmp_path / "g" / "near")
