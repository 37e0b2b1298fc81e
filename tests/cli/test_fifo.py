"""A FIFO in a file's place: a miss, and a problem that verify names; nobody hangs (I6).

Not beside the other tests of damage, which run on every file system: here a local disk is meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sharedfs_backend import native, parts, tools
from sharedfs_backend.layout import Truncated, journal_path
from sharedfs_backend.native import Loops
from sharedfs_backend.packcheck import read_header
from sharedfs_backend.store import Store
from tests.store.inline import Client, chunks_of, layout_of, settings_for
from tests.store.test_damage import pack_files

CHUNKS = chunks_of(8)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("loops", [native.loops, lambda: None], ids=["compiled", "python"])
def test_a_fifo_in_a_packs_place_is_a_miss_and_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loops: Callable[[], Loops | None]
) -> None:
    monkeypatch.setattr(parts, "loops", loops)
    Client(tmp_path).put(CHUNKS)
    make_fifo(pack_files(tmp_path)[0])
    settings = settings_for(tmp_path, profile="local")
    with Store(settings=settings) as store:
        assert store.wait_current()
        buffers = [bytearray(len(data)) for data in CHUNKS.values()]
        assert store.load(list(CHUNKS), buffers, layout=layout_of(CHUNKS)) == [False] * 8
        assert store.stats()["load_misses_short"] == 8


def test_fifos_in_the_place_of_a_pack_and_a_journal_do_not_stop_verify(tmp_path: Path) -> None:
    Client(tmp_path).put(CHUNKS)
    make_fifo(pack_files(tmp_path)[0])
    os.mkfifo(tmp_path / journal_path("1" * 16))
    report = tools.verify(settings_for(tmp_path, profile="local"))
    assert report.counts == {"invalid": 1}


def test_a_pack_too_short_to_be_one_is_not_even_opened(tmp_path: Path) -> None:
    """It may be a FIFO, and opening that hangs on a file system that is no local disk."""
    client = Client(tmp_path)
    client.put(CHUNKS)
    (name,) = [pack.name for pack in client.store.parts.ledger.packs()]
    make_fifo(tmp_path / name.path)
    client.counting.reset()
    with pytest.raises(Truncated):
        read_header(client.counting, client.store.parts.seal, name)
    assert client.ops() == {"stat": 1}
