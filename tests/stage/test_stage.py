"""Staging between real directories: what arrives, in which order, and when it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharedfs_backend import tools
from sharedfs_backend.exceptions import ConfigError, NamespaceMissing
from sharedfs_backend.layout import RealmDescriptor, Seal, realm_path
from sharedfs_backend.stage import Staged, Stop, stage
from sharedfs_backend.stage.copying import WORKERS, Copier
from sharedfs_backend.stage.moving import chosen
from sharedfs_backend.store import Store
from tests.store.inline import Client, chunks_of, items_of, layout_of, settings_for

ROOT = Path(__file__).resolve().parents[2]
MODEL = RealmDescriptor("model", True, "", "", "sha256")
COMMAND = (sys.executable, "-c", "from sharedfs_backend.cli import main; main()", "stage")

Chunks = dict[bytes, bytes]


def filled(root: Path, packs: int, nbytes: int = 4096) -> list[Chunks]:
    """A namespace of so many packs, the oldest first; a lookup asked for none since."""
    client = Client(root)
    contents = [chunks_of(4, nbytes, seed=100 + number) for number in range(packs)]
    for chunks in contents:
        client.put(chunks)
        client.pass_time(200.0, step=5.0)  # heartbeats, so that age can be told
    client.store.close()
    return contents


def staged(tmp_path: Path, **options: object) -> Staged:
    source, target = settings_for(tmp_path / "from"), settings_for(tmp_path / "to")
    return stage(source, target, **options)  # type: ignore[arg-type] # its keywords


def held(root: Path, contents: Sequence[Chunks]) -> list[bool]:
    """Which of these packs' contents a new client of `root` loads, every byte right."""
    client = Client(root)
    client.refresh()
    return [all(client.load(chunks)) for chunks in contents]


def order_of(root: Path) -> list[bytes]:
    """First chunk key of each pack of a namespace, in the order in which they were published."""
    client = Client(root)
    client.refresh()
    packs = sorted(client.store.parts.ledger.packs(), key=lambda pack: pack.name.seq)
    tables = [client.store.parts.catalog.entries_of(pack.pack_id) for pack in packs]
    return [table[0].key for table in tables if table is not None]


def test_everything_arrives_and_verifies(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 3)
    done = staged(tmp_path)
    assert (done.stopped, done.packs_copied, done.chunks_copied) == (Stop.DONE, 3, 12)
    assert done.bytes_copied == 12 * 4096
    assert held(tmp_path / "to", contents) == [True] * 3
    assert tools.verify(settings_for(tmp_path / "to")).counts == {}


def test_the_source_keeps_everything(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 2)
    before = sorted(path for path in (tmp_path / "from").rglob("*") if path.is_file())
    staged(tmp_path)
    assert sorted(path for path in (tmp_path / "from").rglob("*") if path.is_file()) == before
    assert held(tmp_path / "from", contents) == [True] * 2


def test_the_youngest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {**(Copier.__init__.__kwdefaults__ or {}), "workers": 1}
    monkeypatch.setattr(Copier.__init__, "__kwdefaults__", alone)
    contents = filled(tmp_path / "from", 4)
    staged(tmp_path)
    assert order_of(tmp_path / "to") == [next(iter(chunks)) for chunks in reversed(contents)]


def test_a_pack_that_a_lookup_asked_for_goes_before_younger_ones(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 3)
    client = Client(tmp_path / "from", seed=2)
    client.refresh()
    client.store.lookup(list(contents[0]), layouts=layout_of(contents[0]))
    client.put(chunks_of(1, seed=1))  # a writer's touches are heard
    client.pass_time(60.0)
    client.store.close()
    size = tools.listing(settings_for(tmp_path / "from")).live_bytes // 4
    staged(tmp_path, bytes_max=2 * size + size // 2)
    assert held(tmp_path / "to", contents) == [True, False, False]


def test_a_second_run_copies_only_what_is_not_there(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 3)
    one = tools.listing(settings_for(tmp_path / "from")).live_bytes // 3
    assert staged(tmp_path, bytes_max=one).packs_copied == 1
    again = staged(tmp_path)
    assert (again.packs_present, again.packs_copied, again.stopped) == (1, 2, Stop.DONE)
    assert staged(tmp_path).packs_present == 3
    assert held(tmp_path / "to", contents) == [True] * 3


def test_a_pack_of_which_the_target_holds_a_part_is_completed(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 1)
    half = dict(list(contents[0].items())[:2])
    Client(tmp_path / "to").put(half)
    assert staged(tmp_path).chunks_copied == 2
    assert held(tmp_path / "to", contents) == [True]


def test_what_was_there_counts_as_wanted_when_it_was_wanted_in_the_source(tmp_path: Path) -> None:
    filled(tmp_path / "from", 3)
    staged(tmp_path)
    staged(tmp_path)
    writers = sorted((tmp_path / "to" / "journals").iterdir(), key=os.path.getmtime)
    # The second run has stored nothing: its journal holds the touches alone.
    assert len(writers) == 2 and writers[1].stat().st_size == 3 * 4096


def test_a_damaged_chunk_does_not_travel(tmp_path: Path) -> None:
    contents = filled(tmp_path / "from", 2)
    pack = next(path for path in (tmp_path / "from" / "packs").rglob("*") if path.is_file())
    data = bytearray(pack.read_bytes())
    data[5000] ^= 1
    pack.write_bytes(data)
    done = staged(tmp_path)
    assert (done.packs_failed, done.chunks_copied, sum(done.failures.values())) == (1, 7, 1)
    assert sorted(held(tmp_path / "to", contents)) == [False, True]
    assert tools.verify(settings_for(tmp_path / "to")).counts == {}


def test_realm_descriptors_go_along(tmp_path: Path) -> None:
    source = Client(tmp_path / "from")
    realm = source.store.realm(MODEL, b"\1\2\3\4")
    source.store.put(items_of(chunks_of(2)), realm=realm)
    source.store.close()
    staged(tmp_path)
    path = realm_path(realm.digest, b"\1\2\3\4")
    assert (tmp_path / "to" / path).read_bytes() == (tmp_path / "from" / path).read_bytes()


def test_a_realm_whose_engines_hash_otherwise_over_there_stays_at_home(tmp_path: Path) -> None:
    for root, canary in (("from", b"\1\2\3\4"), ("to", b"\4\3\2\1")):
        client = Client(tmp_path / root)
        client.store.put(
            items_of(chunks_of(2, seed=len(root))), realm=client.store.realm(MODEL, canary)
        )
        client.store.close()
    done = staged(tmp_path)
    assert (done.packs_copied, done.failures) == (0, {"other hashes": 2})
    assert done.realms_refused == (MODEL.digest(Seal()).hex(),)


def test_a_cap_over_there_is_kept(tmp_path: Path) -> None:
    filled(tmp_path / "from", 40, nbytes=1 << 20)
    cap_bytes = 64 << 20
    target = settings_for(tmp_path / "to", refresh_seconds=0.05)
    tools.init(target, cap_bytes=cap_bytes)
    stage(settings_for(tmp_path / "from"), target, deadline_seconds=8.0)
    files = [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= cap_bytes


def test_one_namespace_is_not_staged_to_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two namespaces"):
        stage(settings_for(tmp_path), settings_for(tmp_path))


def test_a_source_that_is_no_namespace_is_an_error_and_makes_no_target(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    with pytest.raises(NamespaceMissing):
        staged(tmp_path)
    assert not (tmp_path / "to").exists()


# -- as a process ---------------------------------------------------------------------------------


def command(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    roots = ("--from", str(tmp_path / "from"), "--to", str(tmp_path / "to"), "--json")
    return subprocess.Popen([*COMMAND, *roots, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def big(root: Path, packs: int) -> list[Chunks]:
    """Packs of 32 MiB, cheap to make. One chunk each: a batch of many would be cut."""
    contents: list[Chunks] = []
    with Store(str(root)) as store:
        for _ in range(packs):
            chunks = {os.urandom(16): os.urandom(1 << 12) * (1 << 13)}
            assert store.put(items_of(chunks)).failed is None
            contents.append(chunks)
    return contents


def journal_bytes(root: Path) -> int:
    """Of a namespace that may not be there yet."""
    return sum(path.stat().st_size for path in root.glob("journals/*"))


def arrived(tmp_path: Path) -> list[bool]:
    """Which of the source's packs the target holds, the most valuable first."""
    client, source = Client(tmp_path / "to"), Client(tmp_path / "from")
    client.refresh()
    source.refresh()
    flags = []
    for choice in chosen(settings_for(tmp_path / "from")):
        pack = source.store.parts.ledger.pack(choice.name)
        assert pack is not None and pack.layout is not None
        table = source.store.parts.catalog.entries_of(pack.pack_id)
        assert table is not None
        keys = [entry.key for entry in table]
        flags.append(all(client.store.lookup(keys, layouts=pack.layout)))
    return flags


def test_a_killed_run_is_taken_up_by_the_next(tmp_path: Path) -> None:
    contents = big(tmp_path / "from", 16)
    first = command(tmp_path)
    while journal_bytes(tmp_path / "to") < 3 * 4096:
        assert first.poll() is None, "it was done before it could be killed"
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = command(tmp_path)
    done = json.loads(again.communicate()[0])
    assert again.returncode == 0 and done["stopped"] == "done"
    assert done["packs_present"] > 0 and done["packs_present"] + done["packs_copied"] == 16
    assert all(held(tmp_path / "to", contents))


@pytest.mark.slow
def test_of_two_gigabytes_the_most_valuable_arrive_in_five_seconds(tmp_path: Path) -> None:
    """What arrived is whole and goes before what did not; the next run brings the rest."""
    big(tmp_path / "from", 64)
    run = command(tmp_path, "--deadline", "5")
    done = json.loads(run.communicate()[0])
    assert (run.returncode, done["seconds"] < 5.0) == (0, True)
    there = arrived(tmp_path)
    assert sum(there) == done["packs_copied"] > 0
    assert all(there[: sum(there) - WORKERS]) and not any(there[sum(there) + WORKERS :])
    report = tools.verify(settings_for(tmp_path / "to"))
    assert report.counts.keys() <= {"unnamed", "invalid"} and report.packs >= sum(there)
    again = json.loads(command(tmp_path).communicate()[0])
    assert (again["stopped"], again["packs_present"]) == ("done", sum(there))
    assert all(arrived(tmp_path))
