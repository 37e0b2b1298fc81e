"""Values: dataclasses that are made for every request, cheap to make and not to be changed.

A frozen dataclass sets each field through a guard, a microsecond for eight of them; here the guard
is mypy's alone, at run time they are plain slots. For what is made once in a while
`dataclass(frozen=True, slots=True)` is better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[Made]) -> type[Made]:
    """The class as a slotted dataclass whose fields type checkers do not let anybody assign."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
