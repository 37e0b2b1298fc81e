"""The variants' own logic: what the prefill side is asked, what is held, what Ray's actors get;
and, where Ray is installed, the whole job with it."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launch import rayserve
from launch.commands import REPOSITORY, Command
from launch.hold import hold
from launch.parts import Part
from launch.rayserve import environment_of
from launch.restarts import Restarts
from launch.split import Split, computed_tokens, prefill_body, wait_for_url
from tests.slurm.fleetjob import ENDED, FleetJob


def test_the_prefill_side_is_asked_for_one_token_that_is_not_streamed() -> None:
    asked = {"prompt": "x", "max_tokens": 99, "stream": True, "stream_options": {}, "n": 2}
    body = prefill_body(json.dumps(asked).encode())
    assert body is not None
    assert json.loads(body) == {"prompt": "x", "max_tokens": 1, "stream": False}


def test_the_newer_name_of_the_limit_is_lowered_too() -> None:
    body = prefill_body(b'{"max_completion_tokens": 50}')
    assert body is not None
    assert json.loads(body)["max_completion_tokens"] == 1


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"3"])
def test_what_is_no_request_is_not_prefilled(body: bytes) -> None:
    assert prefill_body(body) is None


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"usage": {"prompt_tokens": 700}}', 700),
        (b'{"usage": {"prompt_tokens": 700, "prompt_tokens_details": null}}', 700),
        (b'{"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}}', 2),
        (b'{"usage": null}', 0),
        (b'{"error": "busy"}', 0),
        (b"[1]", 0),
        (b"", 0),
    ],
)
def test_what_the_prefill_side_computed_is_read_from_its_answer(answer: bytes, tokens: int) -> None:
    assert computed_tokens(answer) == tokens


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """Its address, while it serves."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def replica(name: str, seen: list[str], prompt_tokens: int) -> HTTPServer:
    """A server that notes that it was asked, and answers with a usage."""
    body = json.dumps({"from": name, "usage": {"prompt_tokens": prompt_tokens}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(name)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return HTTPServer(("127.0.0.1", 0), Handler)


@pytest.mark.parametrize(
    ("prompt_tokens", "order"),
    [(255, ["prefill", "decode"]), (256, ["prefill", "settled", "decode"])],
)
def test_the_decode_side_is_asked_when_a_computed_chunk_has_settled(
    prompt_tokens: int, order: list[str]
) -> None:
    seen: list[str] = []
    with (
        serving(replica("prefill", seen, prompt_tokens)) as prefill,
        serving(replica("decode", seen, prompt_tokens)) as decode,
    ):
        urls = f"http://{prefill}", f"http://{decode}"
        split = Split(("127.0.0.1", 0), *urls, 256, lambda: seen.append("settled"))
        with serving(split) as address:
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("POST", "/v1/completions", b'{"prompt": "x"}')
            answer = connection.getresponse()
            assert json.loads(answer.read())["from"] == "decode"
            connection.close()
    assert seen == order
    names = [name.lower() for name, _ in answer.getheaders()]
    assert names.count("date") == names.count("server") == 1


def test_a_url_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "url"

    def stop(seconds: float) -> bool:
        path.write_text("http://a:1\n")
        return False

    assert wait_for_url(path, stop) == "http://a:1"
    assert wait_for_url(tmp_path / "none", lambda seconds: True) == ""


def part(folder: Path, program: str) -> Part:
    return Part(Command((sys.executable, "-c", program)), folder / "log", folder)


def test_what_is_held_is_ended_when_told(tmp_path: Path) -> None:
    held = part(tmp_path, "import time; time.sleep(600)")
    assert hold(lambda: held, lambda seconds: True, Restarts(0)) == 0
    assert held.exit_code is not None


def test_what_ends_by_itself_too_often_is_given_up(tmp_path: Path) -> None:
    started: list[Part] = []

    def start() -> Part:
        started.append(part(tmp_path, "print('once')"))
        return started[-1]

    def stop(seconds: float) -> bool:
        started[-1].wait(30.0)
        return False

    assert hold(start, stop, Restarts(2, pause_seconds=0.0)) == 1
    assert len(started) == 3 and (tmp_path / "log").read_text() == "once\n" * 3


def test_rays_actors_get_the_settings_but_not_another_nodes_cores() -> None:
    given = {"FLEET_MODEL": "m", "FLEET_CORES": "0", "SLURM_JOB_ID": "7", "HOME": "/h"}
    passed = environment_of(given)
    assert passed.pop("PYTHONPATH").split(":")[0] == str(REPOSITORY)
    assert passed == {"FLEET_MODEL": "m", "SLURM_JOB_ID": "7"}


class FakeServe:
    """As much of Serve as is used; an application runs when the job's end has been told."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.done: list[str] = []

    def deployment(self, kind: type, **options: Any) -> Any:
        return SimpleNamespace(bind=lambda *words: (kind.__name__, options, words))

    def run(self, application: Any, *, name: str, route_prefix: None) -> None:
        self.done.append(application[0])
        if name == "front":
            self.log.write_text("it said the URL\n")
            os.kill(os.getpid(), signal.SIGTERM)

    def shutdown(self) -> None:
        self.done.append("shutdown")


class FakeRay(ModuleType):
    """A Ray of two nodes, of which the second comes late. As the real one it takes the signals."""

    def __init__(self, serve: FakeServe) -> None:
        super().__init__("ray")
        self.serve = serve
        self.alive = 0
        self.has_begun = False

    def init(self, *, address: str, log_to_driver: bool) -> None:
        self.has_begun = True
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("Ray's own handler was called"))

    def is_initialized(self) -> bool:
        return self.has_begun

    def nodes(self) -> list[dict[str, bool]]:
        self.alive += 1
        return [{"Alive": True}] * self.alive + [{"Alive": False}]

    def shutdown(self) -> None:
        self.serve.done.append("ray")


@pytest.fixture
def ray_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    ray = FakeRay(FakeServe(tmp_path / "front.log"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(rayserve, "RETRY_SECONDS", 0.0)
    for name, value in {
        "FLEET_MODEL": str(tmp_path),
        "FLEET_NAMESPACE": str(tmp_path / "kv"),
        "FLEET_LOGS": str(tmp_path),
        "FLEET_DEVICE": "cpu",
        "SLURM_JOB_NUM_NODES": "2",
    }.items():
        monkeypatch.setenv(name, value)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield ray
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_end_of_the_job_shuts_serve_down_although_ray_takes_the_signals(
    ray_of_two: FakeRay,
) -> None:
    assert rayserve.main(["--address", "a:1"]) == 0
    assert ray_of_two.serve.done == ["NodePart", "Front", "shutdown", "ray"]


def test_rays_nodes_are_waited_for_and_nothing_is_deployed(ray_of_two: FakeRay) -> None:
    assert rayserve.main(["--address", "a:1", "--wait"]) == 0
    assert ray_of_two.alive == 2 and ray_of_two.serve.done == ["ray"]


@pytest.mark.nightly
@pytest.mark.alone
def test_the_fleet_as_ray_serve_deployments(jobs: Callable[[str], FleetJob]) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[serve]'")
    job = jobs("ray")
    job.submit({}, "--nodes=2", script="ray")
    job.wait(lambda: bool(job.url) or job.state in ENDED, "the fleet is up", 300)
    assert job.ready() == 2
    token = job.logs / "ray-token"
    assert token.stat().st_mode & 0o077 == 0
    job.end()
    job.wait_state("COMPLETED", 120)
    assert job.left_over() == [] and not token.exists()
    assert "draining" in (job.logs / "front.log").read_text() and "SIGTERM" not in job.said


@pytest.mark.nightly
@pytest.mark.alone
def test_the_benchmark_of_many_nodes_through_ray(jobs: Callable[[str], FleetJob]) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    job = jobs("bench")
    results = job.folder / "results"
    arguments = ["nodes", "--rounds=1", f"--into={results}"]
    job.submit({}, "--nodes=2", script="bench", arguments=arguments, stubs=False)
    job.wait_state("COMPLETED", 300)
    assert "Ray actors" in job.said and "met: nodes" in job.said
    assert list(results.iterdir()) and not list(job.folder.glob("bench-*"))
    assert job.left_over() == []
