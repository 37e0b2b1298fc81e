"""LMCache's own drivers: `lmcache bench l2` in this process, a real `lmcache server` beside it."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 180.0  # a server imports torch; on a busy machine that takes long
SHAPE = "(2,64,16,2,64):float16:4"


def spec(root: Path) -> str:
    return json.dumps(
        {
            "type": "plugin",
            "module_path": "sharedfs_backend.mp",
            "class_name": "SharedFSL2Adapter",
            "adapter_params": {"root": str(root)},
        }
    )


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    from lmcache.cli.commands.bench.l2_adapter_bench import L2AdapterBenchCommand

    command = L2AdapterBenchCommand()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--format", default="terminal")
    parser.add_argument("--output", default=None)
    command.execute(parser.parse_args(arguments))
    return capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the driver's own imports
def test_lmcache_bench_l2_verifies_every_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = bench(
        capsys,
        *("--l2-adapter", spec(tmp_path / "ns"), "--num-keys", "16", "--data-size-kb", "64"),
        *("--rounds", "2", "--in-flight", "2", "--no-skip-verify", "--lookup-max-hit-rate", "1.0"),
    )
    assert "All 32 keys data verified OK" in said
    successes = re.findall(r"Total success:\s+(\d+)", said)
    assert successes == ["64"] * 3  # 2 rounds of 32 keys: stored, found and loaded, all of them


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lmcache(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    code = "import sys; from lmcache.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LMCACHE_DISABLE_BANNER": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, start_new_session=True, **options
    )


class Server:
    """One `lmcache server` process with our plugin."""

    def __init__(self, root: Path, log: Path) -> None:
        self.port, self.http_port, self.log = free_port(), free_port(), log
        with log.open("wb") as out:
            self.process = lmcache(
                *("server", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--http-host", "127.0.0.1", "--http-port", str(self.http_port)),
                *("--l1-size-gb", "0.25", "--chunk-size", "64", "--eviction-policy", "LRU"),
                *("--supported-transfer-mode", "auto", "--shm-name", f"sharedfs_{self.port}"),
                *("--l2-adapter", spec(root)),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())

    def answers(self) -> bool:
        try:
            return bool(self.get("/healthcheck"))
        except (urllib.error.URLError, OSError):
            return False

    def drive(self, ranks: int) -> None:
        """Store, look up and retrieve three prompts, as `ranks` workers of one engine would."""
        driver = lmcache(
            *("bench", "server", "--rpc-url", f"tcp://127.0.0.1:{self.port}"),
            *("--url", f"http://127.0.0.1:{self.http_port}", "--mode", "cpu"),
            *("--tp-size", str(ranks), "--num-tokens", "256", "--num-blocks", "64"),
            *("--end", "3", "--interval", "0.1", "--kvcache-shape-spec", SHAPE),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = driver.communicate(timeout=START_SECONDS)
        assert driver.returncode == 0, said.decode()[-3000:]

    def number(self, name: str) -> float:
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def kill(self, number: int) -> int:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        return self.process.wait(60)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.kill(signal.SIGKILL)
        Path(f"/dev/shm/lmcache_l1_pool_sharedfs_{server.port}").unlink(missing_ok=True)


def wait_until(server: Server, name: str, least: float) -> None:
    deadline = time.monotonic() + 60
    while server.number(name) < least:
        assert time.monotonic() < deadline, (name, server.number(name))
        time.sleep(0.2)


@pytest.mark.slow
def test_two_ranks_store_all_is_killed_and_a_fresh_server_hits(
    tmp_path: Path, servers: list[Server]
) -> None:
    root, chunks = tmp_path / "ns", 3 * 4 * 2
    first = Server(root, tmp_path / "first.log")
    servers.append(first)
    first.drive(ranks=2)
    wait_until(first, "sharedfs_chunks_stored{", chunks)
    first.kill(signal.SIGKILL)
    second = Server(root, tmp_path / "second.log")
    servers.append(second)
    second.drive(ranks=2)
    assert second.number("sharedfs_chunks_loaded{") >= chunks
    assert second.number("sharedfs_chunks_stored{") == 0
    assert second.number("sharedfs_adapter_locks{") == 0
    second.kill(signal.SIGINT)
    assert "MPCacheServer closed" in second.log.read_text()
