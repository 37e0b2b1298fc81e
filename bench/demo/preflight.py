"""Says whether this machine can run the demo and, for each thing that is missing, what to do.

Run by `make` with the system's Python before anything is installed, so: standard library only, and
no import from this repository. `gather` looks, `problems` judges; only the second is worth testing
and it is pure. Figures are those of two replicas on one machine: about 10 GB of memory, 1 GiB of
/dev/shm for each engine's KV plus what its processes pass each other, 2.7 GB of packages.

Must not know: how anything is started.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

GB = 1_000_000_000
GIB = 1 << 30
REPOSITORY = Path(__file__).resolve().parents[2]

MEMORY_BYTES = 11 * GB  # A machine sold with 12 GB shows a little less.
MEMORY_FREE_BYTES = 10 * GB
DISK_BYTES = 8 * GB
DISK_INSTALLED_BYTES = 3 * GB  # Model, logs and namespace, once the packages are there.
SHM_BYTES = int(2.5 * GIB)
CORES = 2
PORTS = 6  # Engine, server and the server's HTTP, for two replicas.


@dataclass(frozen=True)
class Machine:
    """What was found. Bytes; None where it could not be read, which is not held against it."""

    python: tuple[int, int]
    has_venv: bool
    system: str
    architecture: str
    cpu_flags: frozenset[str]
    has_numa_library: bool
    memory_bytes: int | None
    memory_free_bytes: int | None
    memory_limit_from: str
    disk_free_bytes: int
    installed: bool
    shm_free_bytes: int | None
    ports_free: int
    cores: int


@dataclass(frozen=True)
class Problem:
    """One thing that is missing, and what to do about it."""

    lacking: str
    remedy: str


def problems(machine: Machine) -> list[Problem]:
    """Returns everything that stands in the way, most basic first; empty when nothing does."""
    return [
        *install_problems(machine),
        *_memory_problems(machine),
        *_shm_problems(machine),
        *_other_problems(machine),
    ]


def install_problems(machine: Machine) -> list[Problem]:
    """Returns what stands in the way of installing; lint and unit tests need no more."""
    return [*_platform_problems(machine), *_disk_problems(machine)]


def _platform_problems(machine: Machine) -> Iterable[Problem]:
    if machine.system != "Linux" or machine.architecture != "x86_64":
        yield Problem(
            f"this is {machine.system} on {machine.architecture}, not Linux on x86-64",
            "run it on an x86-64 Linux machine: the locked packages exist for no other",
        )
    if machine.python != (3, 11):
        found = ".".join(map(str, machine.python))
        yield Problem(
            f"this Python is {found}, not 3.11",
            "install Python 3.11 and name it: make demo PYTHON=/path/to/python3.11",
        )
    elif not machine.has_venv and not machine.installed:
        yield Problem(
            "this Python cannot make virtual environments (ensurepip is missing)",
            "on Debian and Ubuntu: apt install python3.11-venv",
        )
    if machine.cpu_flags and "avx2" not in machine.cpu_flags:
        yield Problem(
            "this processor has no AVX2",
            "use a processor made after about 2015: vLLM's CPU build needs AVX2",
        )

    if machine.system == "Linux" and not machine.has_numa_library:
        yield Problem(
            "libnuma.so.1 is missing, which vLLM's CPU build links",
            "on Debian and Ubuntu: apt install libnuma1",
        )


def _memory_problems(machine: Machine) -> Iterable[Problem]:
    if machine.memory_bytes is not None and machine.memory_bytes < MEMORY_BYTES:
        yield Problem(
            f"{gb(machine.memory_bytes)} of memory ({machine.memory_limit_from}), not 12 GB",
            "use a larger machine, or raise the memory limit of this container or job",
        )
    elif machine.memory_free_bytes is not None and machine.memory_free_bytes < MEMORY_FREE_BYTES:
        yield Problem(
            f"{gb(machine.memory_free_bytes)} of memory free ({machine.memory_limit_from}), not "
            f"{gb(MEMORY_FREE_BYTES)}",
            "end other programs: two engines and two cache servers need about 10 GB",
        )


def _disk_problems(machine: Machine) -> Iterable[Problem]:
    wanted = DISK_INSTALLED_BYTES if machine.installed else DISK_BYTES
    if machine.disk_free_bytes < wanted:
        yield Problem(
            f"{gb(machine.disk_free_bytes)} of disk free where this repository lies, not "
            f"{gb(wanted)}",
            "free some, or clone the repository to a larger disk",
        )


def _shm_problems(machine: Machine) -> Iterable[Problem]:
    if machine.shm_free_bytes is None:
        yield Problem("there is no /dev/shm", "mount one: mount -t tmpfs -o size=4g tmpfs /dev/shm")
    elif machine.shm_free_bytes < SHM_BYTES:
        yield Problem(
            f"{machine.shm_free_bytes / GIB:.1f} GiB free in /dev/shm, not "
            f"{SHM_BYTES / GIB:.1f} GiB",
            "remove stale /dev/shm/lmcache_kv_* files that no process uses, or enlarge it: "
            "mount -o remount,size=4g /dev/shm (containers: --shm-size=4g)",
        )


def _other_problems(machine: Machine) -> Iterable[Problem]:
    if machine.ports_free < PORTS:
        yield Problem(
            f"only {machine.ports_free} of {PORTS} loopback TCP ports could be had",
            "allow this user to listen on 127.0.0.1 (ip link set lo up; ulimit -n)",
        )
    if machine.cores < CORES:
        yield Problem(
            f"{machine.cores} core may be used (affinity mask), not {CORES}",
            "start it with more cores (taskset -c 0,1; Slurm: --cpus-per-task=2)",
        )


def gb(amount: int) -> str:
    return f"{amount / GB:.1f} GB"


def gather(repository: Path = REPOSITORY) -> Machine:
    """Looks at this machine; starts nothing and changes nothing."""
    total, available = parse_meminfo(Path("/proc/meminfo").read_text())
    limit, used = cgroup_memory(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
    bounded = limit is not None and (total is None or limit < total)
    if bounded and limit is not None:
        total = limit
        left = limit - (used or 0)
        available = left if available is None else min(available, left)
    return Machine(
        python=sys.version_info[:2],
        has_venv=_has_module("ensurepip") and _has_module("venv"),
        system=platform.system(),
        architecture=platform.machine(),
        has_numa_library=_has_library("libnuma.so.1"),
        cpu_flags=parse_cpu_flags(Path("/proc/cpuinfo").read_text()),
        memory_bytes=total,
        memory_free_bytes=available,
        memory_limit_from="this cgroup's limit" if bounded else "the machine",
        disk_free_bytes=shutil.disk_usage(repository).free,
        installed=any((repository / ".venv").glob(".installed-*")),
        shm_free_bytes=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
        ports_free=count_free_ports(PORTS),
        cores=len(os.sched_getaffinity(0)),
    )


def parse_meminfo(text: str) -> tuple[int | None, int | None]:
    """Returns (total, available) bytes from the text of /proc/meminfo."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def parse_cpu_flags(text: str) -> frozenset[str]:
    """Returns the first processor's flags from the text of /proc/cpuinfo."""
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def cgroup_memory(own: str, mount: Path) -> tuple[int | None, int | None]:
    """Returns (limit, used) bytes of the tightest memory cgroup around this process, v2 or v1.

    `own` is the text of /proc/self/cgroup. Used memory leaves out file cache the kernel can drop.
    """
    tightest: tuple[int | None, int | None] = (None, None)
    for directory, names in _cgroup_directories(own, mount):
        limit = _read_number(directory / names[0])
        if limit is None or limit >= 1 << 60:  # v1 writes a huge number for "none".
            continue
        if tightest[0] is None or limit < tightest[0]:
            used = _read_number(directory / names[1])
            cache = _inactive_file(directory / "memory.stat")
            tightest = (limit, None if used is None else max(0, used - cache))
    return tightest


def _cgroup_directories(own: str, mount: Path) -> Iterable[tuple[Path, Sequence[str]]]:
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = mount, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = mount / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]), names


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(None, 1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def count_free_ports(wanted: int) -> int:
    """Returns how many loopback ports could be bound at once, up to `wanted`."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(wanted):
            sock = socket.socket()
            sockets.append(sock)
            sock.bind(("127.0.0.1", 0))
        return wanted
    except OSError:
        return max(0, len(sockets) - 1)
    finally:
        for sock in sockets:
            sock.close()


def _has_module(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def _has_library(name: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def main() -> int:
    """Prints each problem with its remedy; the exit code is 0 when there is none.

    With the argument `install` only what an installation needs is looked at.
    """
    if platform.system() != "Linux":
        print("preflight: this runs on Linux only", file=sys.stderr)
        return 1
    judge = install_problems if sys.argv[1:] == ["install"] else problems
    found = judge(gather())
    for problem in found:
        print(f"preflight: {problem.lacking}\n    -> {problem.remedy}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
