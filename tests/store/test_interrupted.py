"""An exception out of a signal handler ends `put`, `load` and `close`, and their use of buffers.

Ctrl-C, or a time limit of the caller's own: it lands wherever the main thread waits. The buffers
are the caller's again from then on (I7), so nothing may still be read from or written to them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.inline import Client, Flag, chunks_of, items_of, layout_of

CHUNKS = chunks_of(2)
KEYS, LAYOUT = list(CHUNKS), layout_of(CHUNKS)


class Interrupted(Flag):
    """A wait that a signal ends."""

    def wait(self, timeout_seconds: float | None = None) -> bool:
        raise KeyboardInterrupt


def test_an_interrupted_put_stores_nothing_of_buffers_reused_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path)
    client.runtime.held = True
    mine = {key: bytearray(data) for key, data in CHUNKS.items()}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(client.runtime, "waiter", Interrupted)
        client.store.put(items_of(mine))  # type: ignore[arg-type] # any buffers
    for buffer in mine.values():
        buffer[:] = bytes(len(buffer))
    client.runtime.held = False
    client.runtime.run()
    assert client.store.lookup(KEYS, layouts=LAYOUT) == [False, False]


def test_an_interrupted_load_writes_to_no_buffer_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path)
    client.put(CHUNKS)
    client.runtime.held = True
    buffers = [bytearray(len(data)) for data in CHUNKS.values()]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(client.runtime, "waiter", Interrupted)
        client.store.load(KEYS, buffers, layout=LAYOUT)
    client.runtime.held = False
    client.runtime.run()
    assert not any(map(any, buffers))


def test_an_interrupted_close_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store counted as closed, so that closing it again did nothing, and it ran on for ever.
    client = Client(tmp_path)
    client.put(chunks_of(1, seed=8))
    client.runtime.held = True
    task = client.store.submit_put(items_of(CHUNKS))
    waiters = iter([Interrupted()])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(client.runtime, "waiter", lambda: next(waiters, Flag()))
        client.store.close()
    assert task.is_done and task.stored == [False, False]
