"""The simulated files keep the contract of `Files`, and break exactly the promises they should."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sharedfs_backend.files import FailureKind, FileFailure
from tests.files.contract import CHECKS, Check
from tests.sim.chaos import Chaos, Fault, Rates, When
from tests.sim.disk import Disk, Inode, Write, after_crash
from tests.sim.files import SimFiles
from tests.sim.quirks import load, names
from tests.sim.world import Client, World


class Lab:
    """A world with one disk."""

    def __init__(self, fs: str, seed: int = 1) -> None:
        self.world = World(seed)
        self.disk = Disk(self.world, load(fs))
        self.chaos = Chaos(self.world)

    def mount(self, name: str) -> SimFiles:
        return SimFiles(self.world.client(name), self.disk, self.chaos)

    def go(self, client: Client, work: Callable[[], None]) -> None:
        self.world.run_all([self.world.start(client, "t", work)], 1e6)


def put(files: SimFiles, path: str, data: bytes) -> None:
    handle = files.create(path)
    files.write(handle, 0, [data])
    files.close(handle)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("fs", names())
def test_contract(fs: str, check: Check) -> None:
    lab = Lab(fs)
    files = lab.mount("c")
    lab.go(files.client, lambda: check(files))
    lab.world.close()


def test_nfs_shows_an_open_file_as_it_was_when_opened() -> None:
    lab = Lab("nfs")
    writer, reader = lab.mount("w"), lab.mount("r")
    seen: list[int] = []
    put(writer, "a", b"12")

    def work() -> None:
        buffer = memoryview(bytearray(8))
        old = reader.open_read("a")
        handle = writer.open_write("a")
        writer.write(handle, 2, [b"34"])
        writer.close(handle)
        seen.append(reader.read(old, 0, buffer))
        seen.append(reader.read(reader.open_read("a"), 0, buffer))

    lab.go(reader.client, work)
    assert seen == [2, 4]


def test_nfs_remembers_that_a_name_was_missing() -> None:
    lab = Lab("nfs")
    writer, reader = lab.mount("w"), lab.mount("r")

    def work() -> None:
        for _ in range(2):
            with pytest.raises(FileFailure) as caught:
                reader.open_read("a")
            assert caught.value.kind is FailureKind.MISSING
            if "a" not in lab.disk.nodes:
                put(writer, "a", b"x")
        lab.world.sleep(61)
        reader.open_read("a")

    lab.go(reader.client, work)


def test_gekkofs_publishes_a_size_before_its_data() -> None:
    lab = Lab("gekkofs")
    writer, reader = lab.mount("w"), lab.mount("r")
    states: set[bytes] = set()

    def watch() -> None:
        for _ in range(400):
            states.add(bytes(lab.disk.nodes["a"].data) if "a" in lab.disk.nodes else b"")
            lab.world.sleep(1e-5)

    lab.world.start(reader.client, "watch", watch)
    lab.go(writer.client, lambda: put(writer, "a", b"data"))
    lab.world.run()
    assert states == {b"", bytes(4), b"data"}


def test_two_creators_may_both_win_on_gekkofs_only() -> None:
    def winners(fs: str, seed: int) -> int:
        lab = Lab(fs, seed)
        won: list[str] = []

        def create(files: SimFiles) -> None:
            try:
                files.create("a")
                won.append("yes")
            except FileFailure:
                pass

        mounts = [lab.mount("x"), lab.mount("y")]
        works = [lambda files=files: create(files) for files in mounts]
        tasks = [lab.world.start(m.client, "t", w) for m, w in zip(mounts, works, strict=True)]
        lab.world.run_all(tasks, 10)
        return len(won)

    assert {winners("gekkofs", seed) for seed in range(40)} == {1, 2}
    assert {winners("lustre", seed) for seed in range(40)} == {1}


@pytest.mark.parametrize(("fs", "kind"), [("nfs", FailureKind.STALE), ("lustre", None)])
def test_an_open_file_after_another_clients_unlink(fs: str, kind: FailureKind | None) -> None:
    lab = Lab(fs)
    writer, reader = lab.mount("w"), lab.mount("r")
    found: list[FailureKind | None] = []

    def work() -> None:
        put(writer, "a", b"data")
        handle = reader.open_read("a")
        writer.unlink("a")
        try:
            reader.read(handle, 0, memoryview(bytearray(4)))
            found.append(None)
        except FileFailure as failure:
            found.append(failure.kind)

    lab.go(reader.client, work)
    assert found == [kind]


def test_a_second_use_of_a_packs_name_is_a_violation() -> None:
    lab = Lab("posix")
    files = lab.mount("c")
    files.make_dir("packs")
    put(files, "packs/a", b"x")
    files.unlink("packs/a")
    put(files, "packs/a", b"x")
    assert "again" in lab.disk.violations[0]


def test_a_write_to_a_closed_pack_is_a_violation() -> None:
    lab = Lab("posix")
    files = lab.mount("c")
    files.make_dir("packs")
    put(files, "packs/a", b"x")
    handle = files.open_write("packs/a")
    files.write(handle, 0, [b"y"])
    assert "after it was closed" in lab.disk.violations[0]


def test_growing_over_the_cap_is_a_violation() -> None:
    lab = Lab("posix")
    lab.disk.cap_bytes = 10
    files = lab.mount("c")
    put(files, "a", b"x" * 10)
    assert not lab.disk.violations
    put(files, "b", b"x")
    assert "over the cap" in lab.disk.violations[0]


@pytest.mark.parametrize("when", list(When))
def test_an_injected_failure_strikes_before_or_after_the_effect(when: When) -> None:
    lab = Lab("posix")
    files = lab.mount("c")
    fault = Fault(FailureKind.IO, when)
    lab.chaos.on_operation.append(lambda _c, op, _p: fault if op == "write" else None)

    def work() -> None:
        with pytest.raises(FileFailure):
            put(files, "a", b"data")

    lab.go(files.client, work)
    assert bytes(lab.disk.nodes["a"].data) == (b"data" if when is When.AFTER else b"")


def test_a_kill_inside_a_write_leaves_all_none_a_part_or_comes_late() -> None:
    def left(seed: int) -> tuple[bool, bytes]:
        lab = Lab("posix", seed)
        lab.chaos.rates = Rates(kill=0.3)
        files = lab.mount("c")
        lab.world.start(files.client, "t", lambda: put(files, "a", b"0123456789"))
        lab.world.run()
        node = lab.disk.nodes.get("a")
        return files.client.dead, bytes(node.data) if node else b"-"

    outcomes = {data for dead, data in map(left, range(300)) if dead}
    assert {b"-", b"", b"0123456789"} < outcomes
    assert any(0 < len(data) < 10 and data != b"-" for data in outcomes)


def test_a_hung_write_reads_the_callers_buffer_when_it_wakes() -> None:
    lab = Lab("posix")
    files = lab.mount("c")
    buffer = bytearray(b"old")
    lab.chaos.on_operation.append(
        lambda _c, op, _p: Fault(None, seconds=100.0) if op == "write" else None
    )

    def reuse() -> None:
        buffer[:] = b"new"

    lab.world.at(50.0, reuse)
    lab.go(files.client, lambda: put(files, "a", buffer))  # type: ignore[arg-type]
    assert bytes(lab.disk.nodes["a"].data) == b"new"


def test_a_crash_keeps_what_is_settled_and_garbles_only_what_is_promised() -> None:
    node = Inode(1, "a", "c", 0.0, settled=b"base", unsettled=[Write(0.0, 4, b"more")])
    outcomes = ("kept", "lost", "partial")
    found = {bytes(after_crash(node, outcomes, random.Random(seed))) for seed in range(200)}
    assert {b"base", b"basemore", b"base\0\0\0\0"} <= found
    assert all(data.startswith(b"base") for data in found)
    torn = [data for data in found if data not in (b"base", b"basemore", b"base\0\0\0\0")]
    assert torn and all(b"basemore".startswith(data.rstrip(b"\0")) for data in torn)


def test_closing_a_handle_under_a_call_is_a_violation() -> None:
    lab = Lab("posix")
    files = lab.mount("c")
    put(files, "a", b"data")
    handle = files.open_read("a")
    lab.chaos.on_operation.append(
        lambda _c, op, _p: Fault(None, seconds=100.0) if op == "read" else None
    )

    def read() -> None:
        files.read(handle, 0, memoryview(bytearray(4)))

    def close_later() -> None:
        lab.world.sleep(50.0)
        files.close(handle)

    lab.world.start(files.client, "r", read)
    lab.world.start(files.client, "c", close_later)
    lab.world.run()
    assert "calls in flight" in lab.disk.violations[0]
