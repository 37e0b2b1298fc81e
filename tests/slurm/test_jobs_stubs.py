"""The other jobs, with stand-ins for engines, servers and GekkoFS's daemon: GekkoFS on the nodes
with staging in and out, one node, the router alone, and prefill apart from decode."""

from __future__ import annotations

import hashlib
import http.client
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sharedfs_backend import Store
from sharedfs_backend.store import DIRECT_LAYOUT, PutItem
from tests.slurm.fleetjob import STUBS, FleetJob

Jobs = Callable[[str], FleetJob]

pytestmark = pytest.mark.alone
UP_SECONDS = 120.0
CHUNK_BYTES = 65536


def fill(root: Path, names: Sequence[str]) -> None:
    """Stores chunks of these names."""
    with Store(str(root)) as store:
        items = [PutItem(key_of(n), memoryview(bytes(CHUNK_BYTES)), DIRECT_LAYOUT) for n in names]
        task = store.put(items)
        assert all(task.stored)


def key_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


def found(root: Path, names: Sequence[str]) -> int:
    """How many of the named chunks a namespace holds."""
    with Store(str(root)) as store:
        assert store.wait_current(60)
        return sum(map(bool, store.lookup([key_of(name) for name in names])))


@pytest.fixture(scope="module")
def gekkofs(jobs: Jobs) -> FleetJob:
    """Run from its start to its end: what an earlier job kept is staged in, what this one stored
    is staged out. The mount is a plain directory; the "client" is a library that does nothing."""
    job = jobs("gekkofs")
    mount, kept = job.folder / "mount", job.folder / "kept"
    mount.mkdir()
    fill(kept, ["old-1", "old-2"])
    settings = {
        "FLEET_NAMESPACE": str(mount / "kv"),
        "FLEET_GEKKOFS": str(STUBS / "gkfs_daemon"),
        "FLEET_GEKKOFS_DATA": str(job.folder / "disk"),
        "FLEET_GEKKOFS_MOUNT": str(mount),
        "FLEET_GEKKOFS_CLIENT": "libm.so.6",
        "FLEET_GEKKOFS_ARGUMENTS": "-P ofi+sockets -l lo",
        "FLEET_REGISTRY": str(job.folder / "registry"),
        "FLEET_KEPT": str(kept),
    }
    job.submit(settings, "--nodes=2", "--time=30")
    job.wait_up(UP_SECONDS)
    job.wait(lambda: "stage-in" not in _running(job), "staged in")
    fill(mount / "kv", ["new-1"])
    job.end()
    job.wait_state("COMPLETED")
    return job


def test_gekkofs_runs_on_every_node_before_anything_else(gekkofs: FleetJob) -> None:
    assert "GekkoFS on 2 node(s) at" in gekkofs.said
    assert gekkofs.said.index("GekkoFS on 2") < gekkofs.said.index("starting at")


def test_its_client_is_in_the_server_and_in_no_engine(gekkofs: FleetJob) -> None:
    servers = [path.read_text() for path in gekkofs.logs.glob("n?-lmcache.log")]
    engines = [path.read_text() for path in gekkofs.logs.glob("n?-engine-0.log")]
    assert ["preload libm.so.6" in text for text in servers] == [True, True]
    assert ["preload None" in text for text in engines] == [True, True]


def test_what_was_kept_is_staged_in_and_what_is_new_is_staged_out(gekkofs: FleetJob) -> None:
    assert found(gekkofs.folder / "mount" / "kv", ["old-1", "old-2", "new-1"]) == 3
    assert found(gekkofs.folder / "kept", ["old-1", "old-2", "new-1"]) == 3


def test_its_data_and_hosts_file_are_gone_with_the_job(gekkofs: FleetJob) -> None:
    assert list((gekkofs.folder / "disk").iterdir()) == []
    assert not (gekkofs.logs / "gekkofs-hosts.txt").exists()
    assert gekkofs.left_over() == []


def test_a_daemon_that_does_not_start_ends_the_job_and_is_named(jobs: Jobs) -> None:
    job = jobs("nodaemon")
    settings = {
        "FLEET_NAMESPACE": str(job.folder / "mount" / "kv"),
        "FLEET_GEKKOFS": str(STUBS / "gkfs_daemon"),
        "FLEET_GEKKOFS_DATA": str(job.folder / "disk"),
        "FLEET_GEKKOFS_MOUNT": str(job.folder / "mount"),
        "FLEET_GEKKOFS_CLIENT": "libm.so.6",
        "FLEET_GEKKOFS_ARGUMENTS": "--no-such-option",
        "FLEET_REGISTRY": str(job.folder / "registry"),
    }
    job.submit(settings, "--nodes=2")
    job.wait_state("FAILED")
    assert "the GekkoFS daemon ended; see" in job.said
    assert "--no-such-option" in (job.logs / "n1-gekkofs.log").read_text()
    assert job.left_over() == []


def test_one_node_is_a_fleet_too(jobs: Jobs) -> None:
    job = jobs("one")
    job.submit({}, script="single_node")
    job.wait_up(UP_SECONDS)
    assert [name for name, _ in job.starts()] == ["n1-0"] and job.ready() == 1
    job.end()
    job.wait_state("COMPLETED")
    assert job.left_over() == []


def test_the_router_alone_serves_the_replicas_of_a_file(jobs: Jobs) -> None:
    job = jobs("router")
    listed = job.folder / "replicas.txt"
    listed.write_text("http://127.0.0.1:9\n")
    job.submit({"FLEET_ROUTER_PORT": "0"}, script="router", arguments=[str(listed)])
    job.wait(lambda: "listening on" in job.said, "the router listens")
    job.end()
    job.wait_state("COMPLETED")
    assert job.left_over() == []


def test_prefill_apart_from_decode(jobs: Jobs) -> None:
    job = jobs("split")
    job.submit({}, "--nodes=2", script="split")
    job.wait(lambda: "split fleet: http://" in job.said, "both parts are up", UP_SECONDS)
    address = job.said.split("split fleet: http://")[1].split("/")[0]
    body = json.dumps({"model": "m", "prompt": [5, 6, 7], "max_tokens": 3, "stream": True})
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse().read().decode()
    connection.close()
    assert [line.count("token_ids") for line in answer.split("\n\n")][:3] == [1, 1, 1]
    asked = {
        part: json.loads(_get(f"{(job.logs / part / 'url').read_text().strip()}/replicas"))
        for part in ("prefill", "decode")
    }
    assert [len(rows["replicas"]) for rows in asked.values()] == [1, 1]
    job.end()
    job.wait_state("COMPLETED")
    assert job.left_over() == []


def _get(url: str) -> bytes:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", f"/{path}")
    body = connection.getresponse().read()
    connection.close()
    return body


def _running(job: FleetJob) -> str:
    """Command lines of the job's processes."""
    time.sleep(0.1)
    texts = []
    for pid in job.pids():
        try:
            texts.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(texts)
