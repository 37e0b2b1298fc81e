"""Bounds: how a setting is declared, and how a value from a configuration file is checked.

`whole`, `number`, `text`, `flag` and `names` declare dataclass fields that carry their `Bound`;
`checked` returns a value in the declared type or raises the `ConfigError` that says what is
allowed and what to do. Everything with a size, a rate or a duration has a lower and an upper
limit, so that no configuration makes memory, descriptors, threads or queues unbounded (I9).

It knows no setting by name, no file and no clock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharedfs_backend.exceptions import ConfigError

# Such texts become part of digests and of LMCache's own joined strings: a space or a quotation
# mark that one replica has and another lacks would silently stop them from sharing.
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+=-]*")
_PLAIN_HINT = (
    "may hold letters, digits and any of ._:/@+=- only; "
    "every replica that is to share must spell it alike"
)

SHOWN_LETTERS_MAX = 120
"""Of a value that is refused."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a setting may be. `least` and `most` are inclusive; `remedy` ends the message."""

    kind: type
    least: float | None = None
    most: float | None = None
    optional: bool = False
    plain: bool = False
    remedy: str = ""

    def __str__(self) -> str:
        noun = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a string",
            dict: "a mapping of strings to strings",
        }[self.kind]
        if self.least is not None and self.most is not None:
            noun += f" from {_shown(self.least)} to {_shown(self.most)}"
        return noun + (", or left out" if self.optional else "")


def whole(default: int, least: int, most: int, remedy: str = "") -> Any:
    """A field holding a whole number of bytes, files, threads, ..."""
    return field(default=default, metadata={"bound": Bound(int, least, most, remedy=remedy)})


def whole_or_none(least: int, most: int, remedy: str) -> Any:
    """A field holding a whole number, or None where something else decides."""
    bound = Bound(int, least, most, optional=True, remedy=remedy)
    return field(default=None, metadata={"bound": bound})


def number(default: float, least: float, most: float) -> Any:
    """A field holding seconds or a ratio."""
    return field(default=default, metadata={"bound": Bound(float, least, most)})


def flag(default: bool) -> Any:
    return field(default=default, metadata={"bound": Bound(bool)})


def text(default: str | None, *, plain: bool) -> Any:
    """A field holding a string; None as default makes it optional, `plain` limits its letters."""
    bound = Bound(str, optional=default is None, plain=plain)
    return field(default=default, metadata={"bound": bound})


def names() -> Any:
    """A field holding pairs (name, plain text), given as a mapping."""
    return field(default=(), metadata={"bound": Bound(dict)})


def checked(name: str, value: object, bound: Bound) -> object:
    """`value` in the declared type, or ConfigError. 1e9 is a whole number; true is none."""
    if value is None and bound.optional:
        return None
    if bound.kind in (int, float):
        return _checked_number(name, value, bound)
    if bound.kind is dict:
        return _checked_names(name, value, bound)
    if not isinstance(value, bound.kind):
        raise _refused(name, value, bound)
    if isinstance(value, str):
        if bound.optional and not value:
            raise ConfigError(f'{name} = "": is empty; leave it out instead')
        if not is_path(value):
            raise ConfigError(f"{name} = {shown(value)}: must be UTF-8 without NUL characters")
        if bound.plain and not _PLAIN.fullmatch(value):
            raise ConfigError(f"{name} = {shown(value)}: {_PLAIN_HINT}")
    return value


def is_path(text: str) -> bool:
    """Whether the operating system, a log and JSON all take it."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # a surrogate without its other half
        return False


def shown(value: object) -> str:
    """`value` as a message shows it: on one line, and not for pages."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits; lists in lists in lists
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN_LETTERS_MAX else f"{text[:SHOWN_LETTERS_MAX]}..."


def unknown(name: str, known: list[str]) -> ConfigError:
    """The error for a setting that does not exist, with the one that was probably meant."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) or [
        item for item in known if item.startswith(name + "_")
    ]
    hint = f"did you mean {near[0]}?" if near else f"known settings are {', '.join(known)}"
    return ConfigError(f"unknown setting {shown(name)}: {hint}")


def _checked_number(name: str, value: object, bound: Bound) -> int | float:
    assert bound.least is not None and bound.most is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(name, value, bound)
    if not bound.least <= value <= bound.most:  # nor is NaN; math.isfinite overflows on large ints
        raise _refused(name, value, bound)
    if bound.kind is float:
        return float(value)
    if value != int(value):
        raise _refused(name, value, bound)
    return int(value)


def _checked_names(name: str, value: object, bound: Bound) -> tuple[tuple[str, str], ...]:
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, tuple):
        raise _refused(name, value, bound)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise _refused(name, value, bound)
        key, meaning = pair
        if not isinstance(key, str) or not isinstance(meaning, str) or not meaning:
            raise _refused(name, value, bound)
        if not _PLAIN.fullmatch(meaning):
            raise ConfigError(f"{name}[{shown(key)}] = {shown(meaning)}: {_PLAIN_HINT}")
    return tuple(sorted(pairs))


def _refused(name: str, value: object, bound: Bound) -> ConfigError:
    remedy = f"; {bound.remedy}" if bound.remedy else ""
    return ConfigError(f"{name} = {shown(value)}: must be {bound}{remedy}")


def _shown(value: float) -> str:
    return f"{value:,d}" if isinstance(value, int) else f"{value:g}"
