"""Fixtures of the adapter's tests: an adapter on a store in memory, checked for leftovers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # warns when imported
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters

    from sharedfs_backend.mp import SharedFSL2Adapter

    load_all_adapters()

from tests.mp.fake_store import FakeStore
from tests.mp.helpers import identify


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Whoever makes an adapter closes it, and then none of its threads is left."""
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("sharedfs-") and thread.is_alive()
    ]
    for thread in left:
        thread.join(1)
    assert not [thread.name for thread in left if thread.is_alive()]


@pytest.fixture
def fake() -> FakeStore:
    return FakeStore()


@pytest.fixture
def adapter(fake: FakeStore) -> Iterator[Any]:
    made = SharedFSL2Adapter({"root": "/nowhere"}, store=fake, identify=identify)
    yield made
    made.close()
    fake.join()
