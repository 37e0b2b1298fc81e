"""What a measurement was made with: machine, commit, command, date, and how busy the machine was.

Reads /proc and asks git; every value is what was found, and "unknown" where nothing was. No host
name and no path of this machine gets into a record.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the machine was: the load of the last minute, and since boot, in ticks of all cores:
    not idle, given to others by the host (steal), and all there were."""

    one_minute: float
    busy_ticks: int
    stolen_ticks: int
    all_ticks: int


def machine() -> str:
    """One line: processor, cores, memory, kernel, Python."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{_processor()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine() or "unknown processor"


def commit() -> str:
    """The commit, with "+changes" where tracked files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def busy_cores(seconds: float) -> float:
    """How many cores worked during that time: what others do while this process waits."""
    before = load()
    time.sleep(seconds)
    after = load()
    ticks = max(1, after.all_ticks - before.all_ticks)
    return (after.busy_ticks - before.busy_ticks) / ticks * len(os.sched_getaffinity(0))


def versions(*packages: str) -> str:
    """Of those that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in packages:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def digest(path: Path) -> str:
    """Of a file's content, short: another file may have its name."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:12]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def load() -> Load:
    ticks = [int(word) for word in _read("/proc/stat").partition("\n")[0].split()[1:]]
    stolen = ticks[7] if len(ticks) > 7 else 0
    whole = sum(ticks[:8])
    return Load(os.getloadavg()[0], whole - sum(ticks[3:5]), stolen, whole)


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, as the mount table says."""
    from sharedfs_backend.files.mounts import mount_of, parse_mountinfo

    mount = mount_of(str(path.resolve()), parse_mountinfo(_read("/proc/self/mountinfo")))
    return mount.kind if mount is not None else "unknown"


def memory_available_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
