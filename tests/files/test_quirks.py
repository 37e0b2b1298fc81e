"""The quirk file is whole, typed, and says what the protocol's rules were made for."""

from __future__ import annotations

import errno

import pytest

from sharedfs_backend.files import NAMED
from tests.files import quirks


def test_every_file_system_of_the_quirk_file_loads() -> None:
    assert {quirks.load(name).name for name in quirks.names()} == {
        "gekkofs",
        "glusterfs",
        "lustre",
        "nfs",
        "posix",
    }


def test_a_misspelt_quirk_is_an_error() -> None:
    table = quirks._tables()["posix"] | {"renam": "ok"}
    with pytest.raises(ValueError, match="renam"):
        quirks.parse("posix", table)


@pytest.mark.parametrize(
    ("key", "value"),
    [("rename", "perhaps"), ("vectored_io", "EWHAT"), ("open_round_trips", "1"), ("mmap", "zero")],
)
def test_a_value_outside_its_closed_set_is_an_error(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        quirks.parse("posix", quirks._tables()["posix"] | {key: value})


@pytest.mark.parametrize("name", quirks.names())
def test_a_named_profile_asks_for_nothing_its_file_system_lacks(name: str) -> None:
    profile, found = NAMED[name], quirks.load(name)
    assert not profile.rename or found.rename == "ok"
    assert not profile.vectored or found.vectored_io == "ok"
    assert not profile.fadvise or found.fadvise == "ok"
    assert not profile.direct_io or found.o_direct == "ok"
    assert not profile.mtime or found.timestamps == "ok"
    assert profile.align_bytes % found.object_bytes == 0 or name in ("nfs", "glusterfs")
    assert profile.orphans_offline_only == (found.unlink_while_writing == "poisons")


def test_names_of_errnos_become_numbers() -> None:
    gekkofs = quirks.load("gekkofs")
    assert quirks.error_number(gekkofs.vectored_io) == errno.EBADF
    assert quirks.error_number(gekkofs.rename) == errno.ENOTSUP
    assert quirks.error_number("ok") == 0
