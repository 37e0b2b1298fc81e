"""Every errno ends in exactly one kind, and the failure says what was tried."""

from __future__ import annotations

import errno
import pickle

import pytest

from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.files.failure import kind_of, translate

EXPECTED = {
    "ENOENT": "missing",
    "ENOTDIR": "missing",
    "EEXIST": "exists",
    "ESTALE": "stale",
    "ENOSPC": "no_space",
    "EDQUOT": "no_space",
    "ENOTSUP": "unsupported",
    "EOPNOTSUPP": "unsupported",
    "ENOSYS": "unsupported",
    "ENOTTY": "unsupported",
    "EACCES": "denied",
    "EPERM": "denied",
    "EROFS": "denied",
    "ELOOP": "denied",
    "ETIMEDOUT": "timeout",
}


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_has_its_kind_and_an_unexpected_one_is_io(number: int) -> None:
    expected = EXPECTED.get(errno.errorcode[number], "io")
    assert kind_of(number).value == expected


def test_a_failure_says_what_was_tried_where_and_why() -> None:
    failure = translate(OSError(errno.EIO, "x"), "read", "packs/00/a")
    assert str(failure) == "read packs/00/a: io: EIO (Input/output error)"
    assert (failure.kind, failure.errno) == (FailureKind.IO, errno.EIO)


def test_an_error_without_a_number_is_io() -> None:
    assert translate(OSError("odd"), "read", "a").kind is FailureKind.IO


def test_a_failure_survives_pickling() -> None:
    failure = FileFailure(FailureKind.SICK, "open", "a", "why")
    copied = pickle.loads(pickle.dumps(failure))
    assert (copied.kind, copied.operation, copied.path, copied.detail) == (
        FailureKind.SICK,
        "open",
        "a",
        "why",
    )
