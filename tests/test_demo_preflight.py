"""Preflight: every lack is named with a remedy, and a sufficient machine has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.demo import preflight
from bench.demo.preflight import (
    GB,
    GIB,
    Machine,
    cgroup_memory,
    install_problems,
    parse_meminfo,
    problems,
)

GOOD = Machine(
    python=(3, 11),
    has_venv=True,
    system="Linux",
    architecture="x86_64",
    cpu_flags=frozenset({"sse2", "avx2"}),
    has_numa_library=True,
    memory_bytes=12 * GB,
    memory_free_bytes=11 * GB,
    memory_limit_from="the machine",
    disk_free_bytes=9 * GB,
    installed=False,
    shm_free_bytes=3 * GIB,
    ports_free=6,
    cores=2,
)


def test_a_sufficient_machine_has_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"python": (3, 13)}, "this Python is 3.13, not 3.11"),
        ({"has_venv": False}, "cannot make virtual environments"),
        ({"architecture": "aarch64"}, "Linux on aarch64"),
        ({"system": "Darwin"}, "Darwin on x86_64"),
        ({"cpu_flags": frozenset({"sse2"})}, "no AVX2"),
        ({"has_numa_library": False}, "libnuma.so.1 is missing"),
        ({"memory_bytes": 8 * GB}, "8.0 GB of memory"),
        ({"memory_free_bytes": 4 * GB}, "4.0 GB of memory free"),
        ({"disk_free_bytes": 5 * GB}, "5.0 GB of disk free"),
        ({"shm_free_bytes": 1 * GIB}, "1.0 GiB free in /dev/shm"),
        ({"shm_free_bytes": None}, "no /dev/shm"),
        ({"ports_free": 2}, "only 2 of 6 loopback TCP ports"),
        ({"cores": 1}, "1 core may be used"),
    ],
)
def test_each_lack_is_named_once_with_a_remedy(change: dict[str, object], lacking: str) -> None:
    found = problems(replace(GOOD, **change))  # type: ignore[arg-type]  # varied by name
    assert len(found) == 1
    assert lacking in found[0].lacking
    assert len(found[0].remedy) > 20


def test_an_installation_needs_neither_the_memory_nor_the_cores_of_two_engines() -> None:
    small = replace(GOOD, memory_bytes=GB, shm_free_bytes=0, cores=1)
    assert install_problems(small) == []
    assert len(install_problems(replace(GOOD, disk_free_bytes=0))) == 1


def test_all_lacks_are_told_at_once() -> None:
    assert len(problems(replace(GOOD, cores=1, disk_free_bytes=0, memory_bytes=GB))) == 3


def test_an_installed_environment_needs_less_disk_and_no_venv_module() -> None:
    installed = replace(GOOD, installed=True, disk_free_bytes=4 * GB, has_venv=False)
    assert problems(installed) == []


def test_meminfo_is_read_in_bytes() -> None:
    text = "MemTotal:  16 kB\nMemFree: 3 kB\nMemAvailable:  8 kB\nHugePages_Total: 0\n"
    assert parse_meminfo(text) == (16384, 8192)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_cgroup_around_the_process_is_the_limit(tmp_path: Path) -> None:
    write(tmp_path / "job/memory.max", "3000\n")
    write(tmp_path / "job/memory.current", "1000\n")
    write(tmp_path / "job/memory.stat", "anon 700\ninactive_file 200\n")
    write(tmp_path / "job/step/memory.max", "max\n")
    assert cgroup_memory("0::/job/step\n", tmp_path) == (3000, 800)


def test_version_1_cgroups_are_read_and_their_huge_default_is_no_limit(tmp_path: Path) -> None:
    own = "5:cpu:/\n4:memory:/box\n"
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_memory(own, tmp_path) == (None, None)
    write(tmp_path / "memory/box/memory.limit_in_bytes", "500\n")
    write(tmp_path / "memory/box/memory.usage_in_bytes", "100\n")
    assert cgroup_memory(own, tmp_path) == (500, 100)


def test_this_machine_can_be_looked_at() -> None:
    machine = preflight.gather()
    assert machine.cores >= 1
    assert machine.memory_bytes is not None
    assert machine.ports_free == preflight.PORTS
