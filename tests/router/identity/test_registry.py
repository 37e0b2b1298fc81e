"""Replicas announce themselves by files, and observers tell the living from the dead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.announcer import Announcer
from router.registry import DEAD_POLL_PASSES, AnnouncedReplica, Registry, read_replicas
from sharedfs_backend.exceptions import NamespaceMissing
from sharedfs_backend.files import NAMED, FailureKind, FileFailure, LocalFiles, Profile
from sharedfs_backend.layout import REPLICA_BYTES, Seal, replica_path
from sharedfs_backend.namespace import open_namespace
from sharedfs_backend.settings import Settings
from tests.files.faulty import FaultyFiles
from tests.sim.chaos import Chaos
from tests.sim.disk import Disk
from tests.sim.files import SimFiles
from tests.sim.quirks import load, names
from tests.sim.world import World

LEASE = 100
RECORD = AnnouncedReplica("", "http://a:1", lease_seconds=LEASE, model="m", chunk_tokens=256)


class Site:
    """A directory, and whoever announces or observes there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = FaultyFiles(LocalFiles(str(root)))
        self.files.inner.make_dir("replicas")
        self.ids: Iterator[bytes] = (bytes([n]) * 8 for n in itertools.count(1))
        self.registry = Registry(self.files, Seal())

    def announcer(
        self, url: str = "http://a:1", profile: Profile = NAMED["posix"], lease: int = LEASE
    ) -> Announcer:
        record = AnnouncedReplica("", url, lease_seconds=lease, model="m", chunk_tokens=256)
        return Announcer(self.files, Seal(), profile, record, lambda _: next(self.ids))

    def urls(self, now: float) -> list[str]:
        return sorted(sighting.replica.url for sighting in self.registry.poll(now))

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.root / "replicas").iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_is_announced_is_read_whole(site: Site) -> None:
    site.announcer().renew(0)
    (sighting,) = site.registry.poll(0)
    assert sighting.replica == AnnouncedReplica(
        "01" * 8, "http://a:1", counter=1, lease_seconds=LEASE, model="m", chunk_tokens=256
    )
    assert not sighting.confirmed


def test_a_renewal_is_an_open_a_write_and_a_close(site: Site) -> None:
    announcer = site.announcer(profile=NAMED["gekkofs"])
    announcer.renew(0)
    announcer.renew(25)
    path = replica_path("01" * 8)
    written = ["create", "write", "close", "open", "write", "close"]
    assert [op for op, where in site.files.tried if where == path] == written
    assert (site.root / path).stat().st_size == REPLICA_BYTES


def test_a_replica_lives_while_its_counter_changes(site: Site) -> None:
    announcer = site.announcer()
    for now in range(0, 10 * LEASE, LEASE // 4):
        announcer.renew(now)
        assert site.urls(now) == ["http://a:1"]
    assert site.registry.poll(10 * LEASE)[0].confirmed


def test_a_replica_without_a_change_for_the_lease_is_dead(site: Site) -> None:
    site.announcer().renew(0)
    assert [site.urls(now) for now in (0, LEASE - 1, LEASE)] == [["http://a:1"]] * 2 + [[]]


def test_who_was_taken_for_dead_and_writes_again_is_alive(site: Site) -> None:
    announcer = site.announcer()
    announcer.renew(0)
    site.urls(0)
    assert site.urls(LEASE) == []
    announcer.renew(LEASE)
    assert any(site.urls(LEASE + n) == ["http://a:1"] for n in range(DEAD_POLL_PASSES))


def test_a_withdrawn_replica_is_gone_at_once(site: Site) -> None:
    announcer = site.announcer()
    announcer.renew(0)
    assert site.urls(0) == ["http://a:1"]
    announcer.withdraw()
    assert site.urls(1) == [] and site.names() == []


@pytest.mark.parametrize("operation", ["list", "open", "read", "close"])
def test_an_unreadable_file_proves_nothing(site: Site, operation: str) -> None:
    site.announcer().renew(0)
    site.urls(0)
    site.files.fail(operation, FailureKind.IO)
    assert site.urls(5 * LEASE) == ["http://a:1"]


def test_a_half_written_file_is_what_it_was_before(site: Site) -> None:
    announcer = site.announcer()
    announcer.renew(0)
    site.urls(0)
    path = site.root / replica_path("01" * 8)
    whole = path.read_bytes()
    announcer.renew(1)
    path.write_bytes(path.read_bytes()[:90] + whole[90:])
    assert site.urls(2) == ["http://a:1"]
    assert site.registry.poll(2)[0].replica.counter == 1


def test_a_listing_that_leaves_a_file_out_does_not_remove_its_replica(site: Site) -> None:
    site.announcer().renew(0)
    site.urls(0)
    site.files.list = lambda path: []  # type: ignore[method-assign]  # an incomplete one
    assert site.urls(1) == ["http://a:1"]


def test_foreign_files_are_passed_over(site: Site) -> None:
    for name in ("README", "0.json", "AB" * 8 + ".json"):
        (site.root / "replicas" / name).write_text("{}")
    (site.root / "replicas" / ("cd" * 8 + ".json")).write_text('{"kind": "replica"}')
    site.announcer().renew(0)
    assert site.urls(0) == ["http://a:1"]


def test_a_file_under_anothers_name_is_not_believed(site: Site) -> None:
    site.announcer().renew(0)
    source, copy = (site.root / replica_path(name * 8) for name in ("01", "fe"))
    copy.write_bytes(source.read_bytes())
    source.unlink()
    assert site.urls(0) == []


def test_a_replica_started_anew_on_its_address_counts_once_and_as_the_new_one(site: Site) -> None:
    site.announcer().renew(0)
    site.urls(0)
    again = site.announcer()
    again.renew(10)
    site.urls(10)
    again.renew(35)
    (sighting,) = site.registry.poll(35)
    assert sighting.replica.announcer == again.announcer and sighting.confirmed


def test_an_announcer_whose_file_is_gone_takes_another_name(site: Site) -> None:
    announcer = site.announcer()
    announcer.renew(0)
    (site.root / replica_path("01" * 8)).unlink()
    announcer.renew(25)
    assert site.names() == ["02" * 8 + ".json"]


def test_an_announcer_never_writes_over_anothers_file(site: Site) -> None:
    site.announcer().renew(0)
    site.ids = iter([b"\1" * 8, b"\7" * 8])
    other = site.announcer("http://b:1")
    with pytest.raises(FileFailure):
        other.renew(0)
    other.renew(25)
    assert site.urls(25) == ["http://a:1", "http://b:1"]


def test_a_renewal_that_failed_is_made_up_for_by_the_next(site: Site) -> None:
    announcer = site.announcer()
    announcer.renew(0)
    site.files.fail("write", FailureKind.IO, times=1)
    with pytest.raises(FileFailure):
        announcer.renew(25)
    announcer.renew(50)
    assert site.registry.poll(50)[0].replica.counter == 3 and len(site.names()) == 1


def test_the_dead_are_cleared_by_who_comes_after(site: Site) -> None:
    site.announcer("http://dead:1").renew(0)
    later = site.announcer()
    for now in range(1000, 1000 + 3 * LEASE, LEASE // 4):
        later.renew(now)
    assert site.names() == ["02" * 8 + ".json"]


def test_the_living_are_not_cleared(site: Site) -> None:
    slow, later = site.announcer("http://slow:1", lease=4 * LEASE), site.announcer()
    slow.renew(0)
    for now in range(1000, 1000 + 5 * LEASE, LEASE // 4):
        later.renew(now)
    assert len(site.names()) == 2


def test_where_unlinking_does_harm_the_dead_stay(site: Site) -> None:
    site.announcer("http://dead:1").renew(0)
    later = site.announcer(profile=NAMED["gekkofs"])
    for now in range(1000, 1000 + 9 * LEASE, LEASE // 4):
        later.renew(now)
    assert len(site.names()) == 2 and "unlink" not in {op for op, _ in site.files.tried}


def test_the_observer_writes_and_removes_nothing(site: Site) -> None:
    site.announcer(profile=NAMED["gekkofs"]).renew(0)
    site.files.tried.clear()
    for now in range(0, 5 * LEASE, 7):
        site.registry.poll(now)
    assert {op for op, _ in site.files.tried} == {"list", "open", "read", "close"}


def test_with_a_secret_strangers_announce_nothing(site: Site) -> None:
    site.announcer().renew(0)
    assert Registry(site.files, Seal(bytes(32))).poll(0) == []


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a b", "http://" + "a" * 600, ""])
def test_an_impossible_replica_is_refused_at_once(site: Site, url: str) -> None:
    with pytest.raises(ValueError, match="impossible"):
        site.announcer(url)


def test_a_namespace_is_read_by_its_root(tmp_path: Path) -> None:
    files, settings = LocalFiles(str(tmp_path)), Settings(root=str(tmp_path))
    with pytest.raises(NamespaceMissing):
        read_replicas(str(tmp_path))
    namespace = open_namespace(files, settings)
    Announcer(files, namespace.seal, namespace.profile, RECORD, bytes).renew(0)
    assert [replica.url for replica in read_replicas(str(tmp_path))] == ["http://a:1"]


@pytest.fixture
def lab() -> Iterator[Callable[[str], tuple[World, SimFiles, SimFiles]]]:
    worlds: list[World] = []

    def make(fs: str) -> tuple[World, SimFiles, SimFiles]:
        world = World(1)
        worlds.append(world)
        disk, chaos = Disk(world, load(fs)), Chaos(world)
        mounts = [SimFiles(world.client(name), disk, chaos) for name in ("w", "r")]
        mounts[0].make_dir("replicas")
        return world, mounts[0], mounts[1]

    yield make
    for world in worlds:
        world.close()


@pytest.mark.parametrize("fs", names())
def test_on_every_file_system_others_see_a_replica_come_live_and_go(
    fs: str, lab: Callable[[str], tuple[World, SimFiles, SimFiles]]
) -> None:
    world, writer, reader = lab(fs)
    announcer = Announcer(writer, Seal(), NAMED.get(fs, NAMED["posix"]), RECORD, bytes)
    registry = Registry(reader, Seal())
    seen: list[list[int]] = []

    def look() -> None:
        seen.append([sighting.replica.counter for sighting in registry.poll(len(seen))])

    def work() -> None:
        for step in (announcer.renew, announcer.renew, lambda _: announcer.withdraw()):
            step(0.0)
            world.sleep(LEASE)  # listings and missing names are remembered for up to a minute
            look()

    world.run_all([world.start(reader.client, "t", work)], 1e6)
    assert seen == [[1], [2], []]
