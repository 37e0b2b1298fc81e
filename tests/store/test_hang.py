"""A file layer that hangs: nobody waits beyond a deadline; when it answers all is well (I6, I7).

Real threads here, because a hang is a thread that does not come back. Time is moved by the test:
what takes a minute takes a loop of ticks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharedfs_backend.files import Files, LocalFiles
from sharedfs_backend.files.health import State
from sharedfs_backend.parts import TICK_SECONDS_MAX
from sharedfs_backend.runtime import LOST_SECONDS, Lane, ThreadRuntime
from sharedfs_backend.store import LoadItem, PutTask, Store
from tests.files.faulty import FaultyFiles
from tests.store.inline import Client, chunks_of, items_of, layout_of, settings_for

PATIENCE_SECONDS = 40.0
"""Of the test for something that takes milliseconds on an idle machine."""


class MovedClock(ThreadRuntime):
    """Real threads; the clock stands, except when the test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0
        super().__init__(read_workers_max=4, write_workers_max=2, background_workers_max=2)

    def now(self) -> float:
        return self.time


class Hanging:
    """A store of its own on `root`, whose calls the test can hang."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.files = FaultyFiles(files or LocalFiles(str(root)))
        self.runtime = MovedClock()
        self.releases: list[threading.Event] = []
        self.store = Store(settings=settings_for(root), runtime=self.runtime, files=self.files)

    def hold_one(self, op: str, path: str, meanwhile: Callable[[], object]) -> None:
        """The next such call hangs until the test is over; later ones do not."""
        arrived, release = self.files.hold(op, path=path)
        self.releases.append(release)
        meanwhile()
        self.until(arrived.is_set, 0.2)
        self.files._held.clear()

    def until(self, claim: Callable[[], bool], step: float = 0.0) -> None:
        """Tick, moving the clock by `step` each time, until `claim` holds. It stands while a call
        is being done, which may take long on a network file system: only what is held hangs."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not claim():
            assert time.monotonic() < end, self.store.stats()
            if not self.files.working:
                self.runtime.time += step
            self.store.tick()
            self.runtime.relieve()
            time.sleep(0.001)  # lets the workers have the interpreter

    def pass_time(self, seconds: float) -> None:
        end = self.runtime.time + seconds
        self.until(lambda: self.runtime.time >= end, 1.0)

    def put(self, seed: int = 7) -> dict[bytes, bytes]:
        chunks = chunks_of(2, seed=seed)
        task = self.store.submit_put(items_of(chunks))
        self.until(lambda: task.is_done)
        assert task.stored == [True, True], task.failed
        return chunks

    def puts(self, seed: int) -> bool:
        """Whether a put is stored. Not at once where the moved clock ran past a call that was only
        slow: its journal is begun anew after a pause."""
        task = self.store.submit_put(items_of(chunks_of(2, seed=seed)))
        self.until(lambda: task.is_done)
        return task.stored == [True, True]

    @property
    def state(self) -> State:
        return self.store.parts.watched.health.state


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    before = set(threading.enumerate())
    made = Hanging(tmp_path)
    yield made
    made.files.heal()
    for release in made.releases:
        release.set()
    made.store.close(0.0)
    made.runtime.close(PATIENCE_SECONDS)
    left = [t for t in set(threading.enumerate()) - before if t.is_alive()]
    for thread in left:
        thread.join(PATIENCE_SECONDS)
    assert not [thread for thread in left if thread.is_alive()]


def load_items(chunks: dict[bytes, bytes]) -> list[LoadItem]:
    layout = layout_of(chunks)
    return [LoadItem(key, memoryview(bytearray(len(data))), layout) for key, data in chunks.items()]


def test_while_everything_hangs_nothing_waits_and_afterwards_all_is_well(hanging: Hanging) -> None:
    store, chunks = hanging.store, hanging.put()
    hanging.until(lambda: store.parts.refresher.passes_done > 0, 1.0)
    arrived, _ = hanging.files.hold("")
    load = store.submit_load(load_items(chunks))
    put = store.submit_put(items_of(chunks_of(2, seed=8)))
    hanging.until(arrived.is_set)
    hanging.until(lambda: load.is_done, 0.5)
    assert load.results == [False, False]
    hanging.until(lambda: hanging.state is State.SICK, 0.5)
    assert store.lookup(list(chunks)) == [False, False]
    assert not store.healthy
    late = store.submit_put(items_of(chunks_of(2, seed=9)))
    assert late.is_done and late.failed == "sick"
    hanging.until(lambda: put.is_done, 1.0)
    assert put.stored == [False, False]
    hanging.pass_time(100.0)
    assert store.lookup(list(chunks)) == [False, False]
    hanging.files.heal()
    hanging.until(lambda: store.healthy, 1.0)
    hanging.until(lambda: store.lookup(list(chunks)) == [True, True], 1.0)
    hanging.until(lambda: store.stats()["in_flight_bytes"] == 0, 1.0)
    again = store.submit_load(load_items(chunks))
    hanging.until(lambda: again.is_done)
    assert again.results == [True, True]
    hanging.until(lambda: hanging.puts(seed=10), 0.1)
    passes = store.parts.refresher.passes_done
    hanging.until(lambda: store.parts.refresher.passes_done > passes + 1, 1.0)


def test_close_returns_while_everything_hangs(tmp_path: Path) -> None:
    hanging = Hanging(tmp_path)
    chunks = hanging.put()
    arrived, _ = hanging.files.hold("")
    told: list[object] = []
    load = hanging.store.submit_load(load_items(chunks))
    put = hanging.store.submit_put(items_of(chunks_of(2, seed=8)), on_done=told.append)
    hanging.until(arrived.is_set)
    closing = threading.Thread(target=hanging.store.close, args=(0.2,))
    closing.start()
    end = time.monotonic() + PATIENCE_SECONDS
    while closing.is_alive() and time.monotonic() < end:
        hanging.runtime.time += 0.05
        closing.join(0.01)
    assert not closing.is_alive()
    assert load.is_done and put.is_done and told == [put]
    hanging.files.heal()
    hanging.runtime.close(PATIENCE_SECONDS)


def test_a_write_that_never_returns_keeps_neither_its_key_nor_its_neighbours(
    hanging: Hanging,
) -> None:
    store = hanging.store
    hanging.put()
    chunks = chunks_of(2, seed=8)
    first, second = (dict([pair]) for pair in chunks.items())
    items = items_of(first)
    tasks: list[PutTask] = []
    hanging.hold_one("write", "packs/", lambda: tasks.append(store.submit_put(items)))
    (stuck,) = tasks
    follower = store.submit_put(items)
    other = store.submit_put(items_of(second))
    hanging.until(lambda: other.is_done)
    assert other.stored == [True]
    hanging.until(lambda: stuck.is_done and follower.is_done, 1.0)
    assert (stuck.stored, follower.stored) == ([False], [False])
    hanging.until(lambda: store.healthy, 1.0)
    again = store.submit_put(items)
    hanging.until(lambda: again.is_done)
    assert again.stored == [True]
    assert store.stats()["in_flight_bytes"] > 0  # its bytes may still come


def test_an_append_that_never_returns_is_given_up_for_a_new_journal(hanging: Hanging) -> None:
    store = hanging.store
    hanging.put()
    old = store.parts.publisher.writer
    tasks: list[PutTask] = []
    items = items_of(chunks_of(2, seed=8))
    hanging.hold_one("write", "journals/", lambda: tasks.append(store.submit_put(items)))
    (stuck,) = tasks
    hanging.until(lambda: stuck.is_done, 1.0)
    hanging.until(lambda: store.healthy, 1.0)
    hanging.pass_time(60.0)
    chunks = hanging.put(seed=9)
    assert store.parts.publisher.writer != old
    hanging.releases[0].set()
    hanging.pass_time(5.0)
    new = store.parts.publisher.writer
    hanging.put(seed=11)
    assert store.parts.publisher.writer == new  # who woke up touched nothing
    assert store.lookup(list(chunks)) == [True, True]


def test_a_refresh_that_never_returns_is_gone_on_with_by_another_thread(
    hanging: Hanging, tmp_path: Path
) -> None:
    store = hanging.store
    hanging.put()
    hanging.hold_one("list", "journals", lambda: None)
    other = Hanging(tmp_path)
    chunks = other.put(seed=8)
    other.store.close()
    other.runtime.close(PATIENCE_SECONDS)
    hanging.until(lambda: store.lookup(list(chunks)) == [True, True], 1.0)


def test_chores_that_never_return_are_gone_on_with_by_another_thread(hanging: Hanging) -> None:
    store = hanging.store
    hanging.put()
    pack = store.parts.ledger.packs()[0]
    hanging.hold_one("unlink", "packs/", lambda: store.parts.sweeper.drop([pack.name]))
    hanging.until(lambda: pack.gone, 1.0)


def test_a_lane_replaces_workers_that_are_lost_and_never_more_than_it_has() -> None:
    runtime = MovedClock()
    release = threading.Event()
    done: list[int] = []

    def stuck() -> None:
        release.wait(PATIENCE_SECONDS)

    for _ in range(2):
        runtime.submit(Lane.WRITE, stuck)
    runtime.submit(Lane.WRITE, lambda: done.append(1))
    runtime.relieve()
    assert done == []
    end = time.monotonic() + PATIENCE_SECONDS
    while runtime._lanes[Lane.WRITE].busy_since.keys().__len__() < 2:
        assert time.monotonic() < end
        time.sleep(0.001)
    runtime.time += LOST_SECONDS + 1
    runtime.relieve()
    while not done:
        assert time.monotonic() < end
        time.sleep(0.001)
    for _ in range(20):
        runtime.submit(Lane.WRITE, stuck)
    runtime.time += 10 * LOST_SECONDS
    runtime.relieve()
    assert runtime._lanes[Lane.WRITE].workers <= 4
    release.set()
    runtime.close(PATIENCE_SECONDS)
    assert runtime._lanes[Lane.WRITE].workers == 0


def test_the_timer_rests_while_background_work_hangs(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.runtime.time += 2.0
    client.runtime.held = True
    client.store.tick()
    assert len(client.runtime.pending) == 2
    assert client.store.tick() == TICK_SECONDS_MAX
    client.runtime.run()
    assert client.store.parts._wakeup.is_set()
