"""A headless Chromium, driven through chromedriver's HTTP protocol with the standard library.

It can resolve no name and reach nothing but 127.0.0.1: a page that needs anything else breaks.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.router.service.fakes import until

NEEDED = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""Programs, and Debian's package of each."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, where Chromium's sandbox refuses to
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--window-size=1360,1250",
)


def missing() -> list[str]:
    """Debian packages that would have to be installed."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Browser:
    """One session."""

    def __init__(self, port: int, folder: str) -> None:
        self._port = port
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={folder}"],
        }
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{made['sessionId']}"

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script returns in the page."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def wait(self, script: str) -> None:
        """Until the expression is true."""
        until(lambda: bool(self.run(f"return {script}")))

    def complaints(self) -> list[str]:
        """What stands on the console, warnings included."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def close(self) -> None:
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, value: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, None if value is None else json.dumps(value))
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer


@contextmanager
def browser() -> Iterator[Browser]:
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        port = 0
        for line in driver.stdout:
            if "started successfully on port" in line:
                port = int(line.rsplit(" ", 1)[1].strip(" .\n"))
                break
        assert port, "chromedriver did not start"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            session = Browser(port, folder)
            try:
                yield session
            finally:
                session.close()
    finally:
        driver.terminate()
        driver.wait(20)
        if driver.stdout is not None:
            driver.stdout.close()
