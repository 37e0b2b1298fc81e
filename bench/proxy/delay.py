"""DelayProxy: forwards TCP connections, each byte a fixed time after it came.

Bytes in flight are not held up by those before them, as on a long cable: a request that follows
another at once is answered right after it. For each direction of a connection there are two
threads, one that receives and stamps, one that waits and sends; at most `HELD_BYTES_MAX` are held,
beyond which the sender is made to wait, as by a full socket. The delay can change at any time and
holds for bytes that come from then on.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType

PIECE_BYTES = 256 << 10
HELD_BYTES_MAX = 64 << 20
CONNECT_SECONDS = 5.0
JOIN_SECONDS = 5.0

Piece = tuple[float, bytes]
"""When to send, and what; no bytes mean the end."""


class DelayProxy:
    """Listens on `port` of the loopback address (0: any free one) and forwards to `target_port`.

    `delay_ms` is added to each direction: a request and its answer take twice that more.
    """

    def __init__(self, target_port: int, *, port: int = 0, delay_ms: float = 0.0) -> None:
        self.target_port = target_port
        self.delay_ms = delay_ms
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    def close(self) -> None:
        """End all connections and threads."""
        with self._lock:
            self._closed = True
            open_now = [self._listener, *self._sockets]
        for one in open_now:
            with contextlib.suppress(OSError):  # the other side may have ended it already
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in list(self._threads):
            thread.join(JOIN_SECONDS)

    def __enter__(self) -> DelayProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), CONNECT_SECONDS)
            except OSError:
                client.close()  # as if the server had refused it
                continue
            server.settimeout(None)
            self._connect(client, server)

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if self._closed:
                client.close()
                server.close()
                return
            self._sockets |= {client, server}
        for source, target in ((client, server), (server, client)):
            held: queue.Queue[Piece] = queue.Queue(HELD_BYTES_MAX // PIECE_BYTES)
            self._start(self._receive, source, held)
            self._start(self._send, target, held)

    def _receive(self, source: socket.socket, held: queue.Queue[Piece]) -> None:
        while True:
            try:
                data = source.recv(PIECE_BYTES)
            except OSError:
                data = b""
            held.put((time.monotonic() + self.delay_ms / 1e3, data))
            if not data:
                return

    def _send(self, target: socket.socket, held: queue.Queue[Piece]) -> None:
        while True:
            due, data = held.get()
            left = due - time.monotonic()
            if left > 0:
                time.sleep(left)
            try:
                if data:
                    target.sendall(data)
                    continue
                target.shutdown(socket.SHUT_WR)
            except OSError:
                self._drain(held, data)
            return

    def _drain(self, held: queue.Queue[Piece], data: bytes) -> None:
        """The receiver is gone: take what still comes, so that nobody waits to put it."""
        while data:
            _, data = held.get()
