"""References to LMCache's memory objects, given back exactly once on every path.

LMCache counts references; an object whose count reaches zero returns to the pool at once, whoever
still writes to it. So a store takes one for as long as it may read, a load owns those it allocated
until it hands them over, and whichever of completion, error, cancel and close comes first gives
them back (I7). Giving back twice would free memory another request is using.

Thread-safe; the count itself is kept by LMCache.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any


class Lent:
    """Memory objects of which we hold one reference each."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects: Sequence[Any] | None = objects
        self._lock = threading.Lock()

    @classmethod
    def take(cls, objects: Sequence[Any]) -> Lent:
        """Add a reference to each object."""
        for taken in objects:
            taken.ref_count_up()
        return cls(list(objects))

    def give_back(self) -> None:
        """Return every reference still held. Any number of calls, from any thread."""
        for held in self._take_all():
            held.ref_count_down()

    def hand_over(self, keep: Sequence[bool]) -> list[Any | None]:
        """The objects to keep, whose references are the caller's from now on; the rest go back.

        All None where `give_back` came first.
        """
        objects = self._take_all()
        handed: list[Any | None] = [None] * len(keep)
        for place, held in enumerate(objects):
            if keep[place]:
                handed[place] = held
            else:
                held.ref_count_down()
        return handed

    def _take_all(self) -> Sequence[Any]:
        with self._lock:
            objects, self._objects = self._objects, None
        return objects or ()
