"""Sizes as people write them."""

from __future__ import annotations

import pytest

from sharedfs_backend.cli.sizes import parse_size, show_size
from sharedfs_backend.exceptions import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17 B", 17),
        ("800GiB", 800 << 30),
        ("800 gib", 800 << 30),
        ("1.5TiB", 3 << 39),
        ("2TB", 2 * 10**12),
        ("0.1MB", 100_000),
    ],
)
def test_a_size_with_a_unit_is_that_many_bytes(text: str, count: int) -> None:
    assert parse_size("--cap", text) == count


@pytest.mark.parametrize("text", ["", "3G", "GiB", "-1", "1e9", "1,5GiB", "3 GiB/s", "9" * 30])
def test_what_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--cap = .*800GiB or 2TB"):
        parse_size("--cap", text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "none"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1.00 KiB"),
        (2_000_000_000, "1.86 GiB"),
        (50 << 30, "50.0 GiB"),
        (800 << 30, "800 GiB"),
        (3 << 49, "1.50 PiB"),
    ],
)
def test_a_size_is_shown_in_three_digits(count: int | None, text: str) -> None:
    assert show_size(count) == text
