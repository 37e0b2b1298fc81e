"""Sizes as people write them. Pure: text to bytes and back.

Both families of units are understood, KiB = 1024 and kB = 1000; a bare letter (500G) is refused,
since half of all tools mean one by it and half the other, and a cap is no place to guess.
"""

from __future__ import annotations

import re
from fractions import Fraction

from sharedfs_backend.exceptions import ConfigError

_BINARY = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15}
_UNITS = {"": 1, "b": 1} | _BINARY | _DECIMAL
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_size(name: str, text: str) -> int:
    """Bytes. ConfigError, naming the option, for what is not a size."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(
            f"{name} = {text!r}: give a number with a unit such as 800GiB or 2TB, or plain bytes"
        )
    return int(Fraction(found[1]) * _UNITS[found[2].lower()])


def show_size(count: int | None) -> str:
    """Three significant digits in the largest binary unit that fits."""
    if count is None:
        return "none"
    value, unit = Fraction(count), "B"
    for name, size in _BINARY.items():
        if abs(count) >= size:
            value, unit = Fraction(count, size), name[0].upper() + "iB"
    if unit == "B":
        return f"{count} B"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{float(value):.{digits}f} {unit}"
