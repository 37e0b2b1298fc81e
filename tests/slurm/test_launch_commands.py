"""The command lines of a fleet, whole, as they are run; and where a preload may be."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch import commands
from launch.commands import Command, ServerPorts
from launch.plan import NodePlan, ReplicaPlan
from launch.site import Site

GOLDEN = Path(__file__).with_name("golden")
PORTS = ServerPorts(7000, 7001)
GPU = ReplicaPlan("n1-0", gpus=("0", "1"))
CPU = ReplicaPlan("n1-0", cores="0-7")
PLAN = NodePlan("n1", "10.0.0.1", (GPU,))
ON_GPUS = Site(
    model="/models/llama",
    namespace="/lustre/kv",
    gpus_per_replica=2,
    engine_arguments=("--max-model-len", "32768"),
    secret_file="/home/u/secret",
    api_key_file="/home/u/key",
    store_settings='{"load_deadline_seconds": 10}',
    cap="2TiB",
)
ON_CPUS = Site(model="/models/small", namespace="/nfs/kv", device="cpu", l1_gib=1)
ON_GEKKOFS = Site(
    model="/models/llama",
    namespace="/gekko/kv",
    registry="/lustre/registry",
    kept="/lustre/kept",
    stage_bytes="500GiB",
    gekkofs="/opt/bin/gkfs_daemon",
    gekkofs_data="/local",
    gekkofs_mount="/gekko",
    gekkofs_client="/opt/lib/libgkfs_intercept.so",
)
HOSTS = "/lustre/logs/gekkofs-hosts.txt"


def shown(*named: tuple[str, Command]) -> str:
    """As in the golden files: a word a line, the environment that this site adds before it."""
    lines = []
    for name, command in named:
        lines += [f"# {name}"]
        lines += [f"{k}={v}" for k, v in command.environment.items() if k not in commands._common()]
        lines += ["python" if word == sys.executable else word for word in command.words]
    return "\n".join(lines) + "\n"


def rendered(site: Site, replica: ReplicaPlan) -> str:
    return shown(
        ("init", commands.init(site, site.namespace, hosts_file=HOSTS)),
        ("server", commands.server(site, PORTS, hosts_file=HOSTS)),
        ("engine", commands.engine(site, PLAN, replica, PORTS, 7002)),
        ("announcer", commands.announcer(site, PLAN, replica, PORTS, 7002)),
        ("router", commands.router(site, 9000)),
        ("stage", commands.stage(site, site.namespace, "/lustre/kept", 100.4, hosts_file=HOSTS)),
    )


@pytest.mark.parametrize(
    ("name", "site", "replica"),
    [("gpus", ON_GPUS, GPU), ("cpus", ON_CPUS, CPU), ("gekkofs", ON_GEKKOFS, GPU)],
)
def test_commands_are_those_of_the_golden_file(name: str, site: Site, replica: ReplicaPlan) -> None:
    """After a wanted change: write `rendered(...)` into the file and read the difference."""
    assert rendered(site, replica) == (GOLDEN / f"{name}.txt").read_text()


def test_gekkofs_is_preloaded_into_the_server_and_never_into_an_engine() -> None:
    site = ON_GEKKOFS
    server = commands.server(site, PORTS, hosts_file=HOSTS)
    assert server.environment["LD_PRELOAD"] == site.gekkofs_client
    others = [
        commands.engine(site, PLAN, GPU, PORTS, 7002),
        commands.announcer(site, PLAN, GPU, PORTS, 7002),
        commands.router(site, 9000),
        commands.init(site, site.registry, hosts_file=HOSTS),
    ]
    assert not any(command.environment.get("LD_PRELOAD") for command in others)


def test_with_another_way_of_access_nothing_is_preloaded() -> None:
    site = replace(ON_GEKKOFS, gekkofs_access="fuse")
    assert "LD_PRELOAD" not in commands.server(site, PORTS, hosts_file=HOSTS).environment


def test_a_client_library_is_named_to_the_plugin_and_to_init() -> None:
    site = replace(ON_GEKKOFS, gekkofs_access="library", gekkofs_client="/opt/lib/c.so", kept="")
    assert site.adapter_params["client_library"] == "/opt/lib/c.so"
    words = commands.init(site, site.namespace, hosts_file=HOSTS).words
    assert words[-2:] == ("--set", "client_library=/opt/lib/c.so")


def test_staging_sees_the_jobs_namespace_alone_through_the_client_library() -> None:
    site = replace(ON_GEKKOFS, gekkofs_access="library", gekkofs_client="/opt/lib/c.so")
    into = commands.stage(site, site.kept, site.namespace, None, hosts_file=HOSTS)
    back = commands.stage(site, site.namespace, site.kept, 9.0, hosts_file=HOSTS)
    assert into.words[-4:] == ("--to-library", "/opt/lib/c.so", "--bytes", "500GiB")
    assert back.words[-6:-4] == ("--from-library", "/opt/lib/c.so")
    assert "LD_PRELOAD" not in into.environment


def test_keys_are_on_no_command_line() -> None:
    text = rendered(ON_GPUS, GPU)
    assert "/home/u/key" in text and "API_KEY" not in text


def test_configurations_are_the_examples_that_users_copy() -> None:
    words = commands.server(ON_CPUS, PORTS).words
    adapter = json.loads(words[words.index("--l2-adapter") + 1])
    example = json.loads((commands.EXAMPLES / "mp-adapter.json").read_text())
    assert adapter == example | {"adapter_params": {"root": "/nfs/kv"}}
