"""Peers: the processes that serve one port tell each other what they see.

Each listens on a Unix socket in a directory only its user can enter; the number in the name is the
process's. The kernel takes 107 bytes of a socket's path and a job's TMPDIR may be longer: then they
are reached through a descriptor of the directory. A question is one JSON object, so is the answer,
and the connection ends. Whoever does not answer within the deadline is left out: a page of numbers
must not hang because one process is being restarted.

It must not know what the answers mean. Of the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 2.0
BYTES_MAX = 64 << 20
QUESTION_BYTES_MAX = 64 << 10
SOCKET_PATH_MAX = 107
"""Bytes: what Linux takes as a socket's path, without the closing zero."""
NUMBER_MAX = 999
"""More processes than settings allow: all decide alike whether the directory's name is short."""

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def socket_path(folder: Path, number: int) -> Path:
    return folder / f"worker-{number}.sock"


class Peers:
    """One process among `count`. `handler` answers a question, for others and for oneself."""

    def __init__(self, handler: Handler, folder: Path | None = None, number: int = 0) -> None:
        self._handler = handler
        self._folder = folder
        self._number = number
        self._server: asyncio.Server | None = None
        self._held: int | None = None

    async def start(self) -> None:
        """Listens, where there are others at all. OSError if the directory is gone."""
        folder = self.meeting()
        if folder is None:
            return
        path = socket_path(folder, self._number)
        path.unlink(missing_ok=True)  # of this number's process before a restart
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        if self._held is not None:
            os.close(self._held)
            self._held = None

    async def ask_all(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """Everybody's answers, one's own first, without those that came not in time."""
        others = []
        if (folder := self.meeting()) is not None:
            mine = socket_path(folder, self._number)
            others = [path for path in sorted(folder.glob("*.sock")) if path != mine]
        answers = await asyncio.gather(*(_ask(path, question) for path in others))
        return [self._handler(question), *(answer for answer in answers if answer is not None)]

    def meeting(self) -> Path | None:
        """The directory, by its name or by one short enough for sockets while this is open."""
        folder = self._folder
        if folder is None or len(os.fsencode(socket_path(folder, NUMBER_MAX))) <= SOCKET_PATH_MAX:
            return folder
        if self._held is None:
            self._held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return Path(f"/proc/self/fd/{self._held}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                question = json.loads(await _read(reader, QUESTION_BYTES_MAX))
                writer.write(json.dumps(self._handler(question)).encode())
                await writer.drain()
                writer.write_eof()
        except (TimeoutError, OSError, ValueError):
            pass  # the asker is gone or speaks another version; it counts us as silent
        finally:
            writer.close()


async def _ask(path: Path, question: dict[str, Any]) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(json.dumps(question).encode())
                writer.write_eof()
                answer = json.loads(await _read(reader, BYTES_MAX))
            finally:
                writer.close()
    except (TimeoutError, OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


async def _read(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """All of it. ValueError past the limit."""
    pieces, size = [], 0
    while piece := await reader.read(1 << 20):
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise ValueError("an answer beyond all measure")
    return b"".join(pieces)
