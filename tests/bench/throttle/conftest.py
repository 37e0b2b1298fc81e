"""Mounts for the tests beside this file: `mount` is one, `mount_as` makes several clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.throttle import Throttle
from tests.bench.throttle.mounts import Mount, mounts


@pytest.fixture
def mount_as(tmp_path: Path) -> Iterator[Mount]:
    with mounts(tmp_path) as mount:
        yield mount


@pytest.fixture
def mount(mount_as: Mount) -> Throttle:
    return mount_as("mount")
