"""The committed vectors: small files beside FORMAT.md and one index of what each must decode to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "sharedfs_backend" / "layout" / "vectors"
INDEX = FOLDER / "index.json"


@dataclass(frozen=True, slots=True)
class Vector:
    """One file and its one expectation: a value, or the name of the error that it ends in."""

    file: str
    kind: str
    claim: str
    secret: bytes | None
    args: dict[str, Any]
    value: Any
    error: str | None
    data: bytes

    def __str__(self) -> str:
        return self.file


@cache
def index() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(INDEX.read_text())
    return loaded


def vectors(kind: str | None = None) -> list[Vector]:
    """All vectors, or those of one kind, in the index's order."""
    return [
        Vector(
            file=item["file"],
            kind=item["kind"],
            claim=item["claim"],
            secret=None if item["secret"] is None else bytes.fromhex(item["secret"]),
            args=item.get("args", {}),
            value=item.get("value"),
            error=item.get("error"),
            data=(FOLDER / item["file"]).read_bytes(),
        )
        for item in index()["files"]
        if kind in (None, item["kind"])
    ]


def vector(file: str) -> Vector:
    return next(item for item in vectors() if item.file == file)
