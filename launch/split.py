"""Split: one address in front of a prefill fleet and a decode fleet that share a namespace.

    python -m launch.split --prefill FILE --decode FILE --host ADDRESS --port PORT

FILE holds the URL of that fleet's router (`launch.head` writes it when the fleet is up). A request
for a completion first goes to the prefill fleet for one token that nobody reads. What that computed
is published, and found by the decode fleet, some moments later: so long (`--settle-seconds`) the
request is held where at least a chunk was computed, and then the decode fleet reloads it. A prefill
that fails, or settles later, costs time, not the answer: the decode fleet computes what it does not
find. An example of the idea, with a thread for each connection; all else passes to the decode side.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from launch.head import say
from launch.node import stop_event

COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
ASK_SECONDS = 1800.0
WAIT_SECONDS = 2.0
SETTLE_SECONDS = 1.5
CHUNK_TOKENS = 256
BLOCK_BYTES = 65536
BODY_BYTES_MAX = 64 << 20
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


def prefill_body(body: bytes) -> bytes | None:
    """The same request for one token, not streamed; None where it is no JSON object."""
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    if not isinstance(asked, dict):
        return None
    for name in ("stream_options", "min_tokens", "n", "best_of"):
        asked.pop(name, None)
    asked["stream"] = False
    asked["max_tokens"] = 1
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    return json.dumps(asked).encode()


def computed_tokens(answer: bytes) -> int:
    """Prompt tokens that the prefill side did not have yet, by its answer; 0 where it is none.

    What it had cached counts only where engines say so (`--enable-prompt-tokens-details`).
    """
    try:
        usage = json.loads(answer)["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return int(usage["prompt_tokens"]) - int(details.get("cached_tokens") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0


class Split(ThreadingHTTPServer):
    """The server; each connection has a thread that ends with it."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        prefill: str,
        decode: str,
        chunk_tokens: int = CHUNK_TOKENS,
        settle: Callable[[], None] = lambda: time.sleep(SETTLE_SECONDS),
    ) -> None:
        self.prefill, self.decode = prefill, decode
        self.chunk_tokens, self.settle = chunk_tokens, settle
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Split

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        if self.path in COMPLETIONS:
            self._prefill(body)
        self._pass_on(body)

    def _prefill(self, body: bytes) -> None:
        asked = prefill_body(body)
        if asked is None:
            return
        connection = _connect(self.server.prefill)
        try:
            connection.request("POST", self.path, asked, self._headers())
            answer = connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            say(f"prefill failed, the decode side computes: {error}")
            return
        finally:
            connection.close()
        if computed_tokens(answer) >= self.server.chunk_tokens:
            self.server.settle()

    def _pass_on(self, body: bytes) -> None:
        """The decode side's answer, as it comes."""
        connection = _connect(self.server.decode)
        try:
            connection.request(self.command, self.path, body or None, self._headers())
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.send_error(502, str(error))
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while block := answer.read1(BLOCK_BYTES):
                self.wfile.write(block)
                self.wfile.flush()
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        return {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}

    def log_message(self, format: str, *args: object) -> None:
        pass


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=ASK_SECONDS)


def wait_for_url(path: Path, stop: Callable[[float], bool]) -> str:
    """What the file says once it is there; empty when it is time to go."""
    while True:
        try:
            if url := path.read_text().strip():
                return url
        except OSError:
            pass  # not there yet: the fleet is still starting
        if stop(WAIT_SECONDS):
            return ""


def main(words: Sequence[str] | None = None) -> int:
    """The command. Exit status 0, when told to end."""
    parser = argparse.ArgumentParser(prog="python -m launch.split")
    parser.add_argument("--prefill", type=Path, required=True, help="file with the router's URL")
    parser.add_argument("--decode", type=Path, required=True, help="file with the router's URL")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--settle-seconds", type=float, default=SETTLE_SECONDS)
    options = parser.parse_args(words)
    stop = stop_event(held=False)
    prefill = wait_for_url(options.prefill, stop.wait)
    decode = wait_for_url(options.decode, stop.wait)
    if not prefill or not decode:
        return 0
    server = Split(
        (options.host, options.port),
        prefill,
        decode,
        int(os.environ.get("FLEET_CHUNK_TOKENS") or CHUNK_TOKENS),
        lambda: time.sleep(options.settle_seconds),
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"split fleet: http://{decode.split('/')[2].split(':')[0]}:{server.server_port}/v1")
    stop.wait()
    server.shutdown()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
