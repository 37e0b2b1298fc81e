"""Stand-in for an engine or a server: answers over HTTP, has a stubborn child, maps a segment.

`python demo_stub.py PORT [--fail]`. The child leads no session of its own, ignores SIGTERM and
renames nothing; it is what a driver that stops only what it started itself would leave behind.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

METRICS = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 7.0\n'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(METRICS.encode() if self.path == "/metrics" else b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["max_tokens"] == 0:
            self.send_error(400, "max_tokens")
            return
        events = [
            {"choices": [{"token_ids": [n], "logprobs": {"token_logprobs": [-0.5]}}]}
            for n in body["prompt"][: body["max_tokens"]]
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._answer("".join([*lines, "data: [DONE]\n\n"]).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    if "--fail" in sys.argv:
        print("stub: the reason why it failed")
        raise SystemExit(3)
    path = f"/dev/shm/sharedfs_test_{os.getpid()}"
    with open(path, "w+b") as segment:
        segment.truncate(4096)
        mapping = mmap.mmap(segment.fileno(), 4096)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    signal.signal(signal.SIGTERM, end_late)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
    mapping.close()


def end_late(signum: int, frame: object) -> None:
    """Maps one more segment while it is being stopped, as engines do that are still starting."""
    with open(f"/dev/shm/sharedfs_test_{os.getpid()}_late", "w+b") as segment:
        segment.truncate(4096)
        late = mmap.mmap(segment.fileno(), 4096)
    time.sleep(1.0)
    late.close()
    os._exit(0)


if __name__ == "__main__":
    main()
