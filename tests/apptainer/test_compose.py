"""The Compose file for a workstation: linted, and its commands run without Docker."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from launch.definition import parse

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "launch" / "compose"
VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::([-?])([^}]*))?\})")

TOP = {"name", "services", "volumes", "networks", "configs", "secrets", "include"}


def _words(text: str) -> set[str]:
    return set(text.split())


KNOWN = {
    # Path of a mapping within a service -> its keys in the Compose specification.
    "": _words(
        "annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command"
        " configs container_name cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period"
        " cpu_rt_runtime"
        " cpu_shares cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules"
        " devices dns dns_opt dns_search domainname entrypoint env_file environment expose extends"
        " external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation"
        " labels links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit"
        " network_mode networks oom_kill_disable oom_score_adj pid pids_limit platform ports"
        " privileged profiles pull_policy read_only restart runtime scale secrets security_opt"
        " shm_size stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits"
        " user userns_mode uts volumes volumes_from working_dir"
    ),
    "build": _words(
        "context dockerfile dockerfile_inline args ssh cache_from cache_to additional_contexts"
        " extra_hosts isolation privileged labels no_cache pull network shm_size target secrets"
        " tags ulimits platforms entitlements"
    ),
    "healthcheck": _words("test interval timeout retries start_period start_interval disable"),
    "volumes": _words("type source target read_only bind volume tmpfs consistency"),
    "deploy": _words(
        "endpoint_mode labels mode placement replicas resources restart_policy rollback_config"
        " update_config"
    ),
    "deploy.resources": _words("limits reservations"),
    "deploy.resources.reservations": _words("cpus memory devices generic_resources"),
    "deploy.resources.reservations.devices": _words("capabilities count device_ids driver options"),
    "depends_on": _words("condition restart required"),
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")


def settings() -> dict[str, str]:
    """What env.example sets."""
    lines = (FOLDER / "env.example").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {key: value for key, value in pairs}


def interpolated(text: str, values: dict[str, str]) -> str:
    """As Compose does it: ${A}, ${A:-default}, ${A:?message}, $$."""

    def put(found: re.Match[str]) -> str:
        name, mark, rest = found.groups()
        if name is None:
            return "$"
        if not values.get(name):
            assert mark != "?", f"{name}: {rest}"
            return rest if mark == "-" else ""
        return values[name]

    bare = VARIABLE.sub("", text)
    assert "$" not in bare, "a $ that Compose would take for a variable"
    return VARIABLE.sub(put, text)


TEXT = (FOLDER / "compose.yaml").read_text()
FILE: dict[str, Any] = yaml.safe_load(interpolated(TEXT, settings()))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]


def unknown_keys(service: dict[str, Any]) -> set[str]:
    wrong = set()
    for path, keys in KNOWN.items():
        found: Any = service
        for part in path.split(".") if path else ():
            found = found.get(part, {}) if isinstance(found, dict) else {}
        if path == "depends_on":
            found = list(found.values())
        for mapping in found if isinstance(found, list) else [found]:
            wrong |= {f"{path}.{key}" for key in set(mapping) - keys}
    return wrong


def test_every_key_is_one_of_composes() -> None:
    assert {key for key in FILE if not key.startswith("x-")} <= TOP
    assert {name: unknown_keys(service) for name, service in SERVICES.items()} == {
        name: set() for name in SERVICES
    }


def test_a_misspelt_key_is_found_at_each_level() -> None:
    service = json.loads(json.dumps(SERVICES["replica-a"]))
    service["shm-size"] = service["build"]["tagret"] = service["healthcheck"]["retry"] = 1
    service["deploy"]["resources"]["reservations"]["devices"][0]["device_id"] = "0"
    assert unknown_keys(service) == {
        ".shm-size",
        "build.tagret",
        "healthcheck.retry",
        "deploy.resources.reservations.devices.device_id",
    }


def test_what_a_service_names_is_there() -> None:
    docker = (FOLDER / "Dockerfile").read_text()
    for service in SERVICES.values():
        assert (FOLDER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert f" AS {service['build']['target']}\n" in docker
        assert all(f"ARG {name}=" in docker for name in service["build"]["args"])
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert how["condition"] in CONDITIONS
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind":
                assert volume["source"].startswith("/")
                assert volume["bind"] == {"create_host_path": False}
            else:
                assert (volume["type"], volume["source"] in FILE["volumes"]) == ("volume", True)
        for key in ("interval", "timeout", "start_period"):
            assert DURATION.fullmatch(service.get("healthcheck", {}).get(key, "1s"))


def test_a_default_is_what_the_example_says_and_each_setting_is_used_and_explained() -> None:
    values = settings()
    used = {found[1]: found for found in VARIABLE.finditer(TEXT) if found[1]}
    assert set(used) == set(values)
    defaults = {name: found[3] for name, found in used.items() if found[2] == "-" and found[3]}
    assert defaults == {name: values[name] for name in defaults}
    lines = (FOLDER / "env.example").read_text().splitlines()
    for at, line in enumerate(lines):
        if "=" in line and not line.startswith("#"):
            block = "\n".join(lines[:at]).split("\n\n")[-1]
            assert block.startswith("# "), line


def test_without_a_directory_it_does_not_start() -> None:
    with pytest.raises(AssertionError, match="SHARED_DIR"):
        interpolated(TEXT, settings() | {"SHARED_DIR": ""})


def test_versions_are_those_of_the_cluster_images() -> None:
    engine = parse((ROOT / "launch/apptainer/engine.def").read_text()).arguments
    router = parse((ROOT / "launch/apptainer/router.def").read_text()).arguments
    values, docker = settings(), (FOLDER / "Dockerfile").read_text()
    for name, value in (engine | router).items():
        assert values[name] == value
        assert f"ARG {name}={value}\n" in docker


def test_the_dockerfile_copies_what_is_there_and_not_ignored() -> None:
    kept = {
        line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().split() if "!" in line
    }
    copied = re.findall(r"^COPY (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    sources = {word for line in copied for word in line.split()}
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


def test_replicas_differ_in_their_gpu_alone() -> None:
    one, other = (dict(SERVICES[name]) for name in ("replica-a", "replica-b"))
    gpus = [
        service.pop("deploy")["resources"]["reservations"]["devices"] for service in (one, other)
    ]
    assert one == other
    assert [device["device_ids"] for (device,) in gpus] == [["0"], ["1"]]


def test_a_replica_starts_server_and_engine_on_the_shared_directory(tmp_path: Path) -> None:
    """The command as the container runs it, with stubs for the two programs."""
    # The script ends its server with the engine: the engine's stub stays until the server has run.
    wait = f'for _ in $(seq 200); do [ -s "{tmp_path}/lmcache.words" ] && break; sleep 0.05; done'
    for name, last in (("lmcache", ""), ("vllm", wait)):
        stub = tmp_path / name
        words = f'printf "%s\\0" {name} "$@" >"{tmp_path}/{name}.words"'
        stub.write_text(f"#!/bin/sh\n{words}\n{last}\n")
        stub.chmod(0o755)
    service = SERVICES["replica-a"]
    given = {name: str(value) for name, value in service["environment"].items()}
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | given
    subprocess.run(service["command"], cwd=ROOT, env=environ, check=True)
    deadline = time.monotonic() + 10
    while not (tmp_path / "lmcache.words").exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # it runs beside the engine
    server = (tmp_path / "lmcache.words").read_text().strip("\0").split("\0")
    engine = (tmp_path / "vllm.words").read_text().strip("\0").split("\0")
    root = json.loads(server[server.index("--l2-adapter") + 1])["adapter_params"]["root"]
    mounts = [volume["target"] for volume in service["volumes"]]
    assert any(root.startswith(f"{mount}/") for mount in mounts)
    assert root in SERVICES["namespace"]["command"]
    assert engine[:3] == ["vllm", "serve", "/models/model"]
    assert engine[2] in mounts
    assert engine[-3:] == shlex.split(settings()["ENGINE_ARGUMENTS"])
    assert server[server.index("--l1-size-gb") + 1] == settings()["L1_SIZE_GB"]


def test_the_namespace_is_made(tmp_path: Path) -> None:
    command = SERVICES["namespace"]["command"]
    root = next(word for word in command if word.startswith("/"))
    words = [str(tmp_path / "kv") if word == root else word for word in command[1:]]
    program = "from sharedfs_backend.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "200 GiB" in done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_router_starts_and_knows_both_replicas() -> None:
    command = SERVICES["router"]["command"]
    port, replicas = free_port(), command[command.index("--replicas") + 1]
    assert {url.split("//")[1] for url in replicas.split(",")} == {
        f"{name}:8000" for name in SERVICES if name.startswith("replica")
    }
    local = re.sub(r"//[\w-]+:", "//127.0.0.1:", replicas).replace(":8000", ":1", 1)
    words = [str(port) if word == "9000" else word for word in command[1:]]
    words[words.index(replicas)] = local.replace(":8000", ":2")
    process = subprocess.Popen([sys.executable, "-m", "router", *words], cwd=ROOT)
    try:
        known = json.loads(until_answered(f"http://127.0.0.1:{port}/replicas", process))
        assert len(known["replicas"]) == 2
    finally:
        process.terminate()
        assert process.wait(30) == 0


def until_answered(url: str, process: subprocess.Popen[bytes]) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while True:
        try:
            with opener.open(url, timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)


class Health(http.server.BaseHTTPRequestHandler):
    """Answers every path with the server's status."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == self.server.path else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def health() -> Iterator[http.server.HTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "port", "path"), [("replica-a", "8000", "/health"), ("router", "9000", "/ready")]
)
def test_a_health_check_tells_well_from_unwell(
    health: Any, name: str, port: str, path: str
) -> None:
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    assert f"127.0.0.1:{port}{path}" in words[-1]
    health.path = path
    words[-1] = words[-1].replace(f":{port}", f":{health.server_port}")
    found = []
    for status in (200, 503):
        health.status = status
        environ = {"PATH": os.environ["PATH"], "no_proxy": "127.0.0.1"}
        found.append(
            subprocess.run(words, env=environ, capture_output=True, check=False).returncode
        )
    assert found == [0, 1]
