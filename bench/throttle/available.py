"""Whether the throttling file system can be built and mounted here, and what is missing if not.

Looks at the machine only. `missing` names the Debian package or the command for the first thing
that stands in the way; tests and benchmark cases skip with its words.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAM = FOLDER / "build" / "throttlefs"


class ThrottleUnavailable(RuntimeError):
    """The file system cannot be mounted on this machine; the message says what to do."""


def missing(*, to_build: bool = False) -> str | None:
    """What is lacking, and the remedy; None when a mount can be made (or the program built)."""
    if not to_build:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "/dev/fuse cannot be used: load the fuse module, or start the container with it"
        if shutil.which("fusermount3") is None:
            return "fusermount3 is missing: apt install fuse3"
        if PROGRAM.exists():
            return None
    for tool, package in (("gcc", "gcc"), ("make", "make"), ("pkg-config", "pkg-config")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt install {package}"
    if subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode:
        return "the headers of libfuse 3 are missing: apt install libfuse3-dev"
    return None if to_build else f"{PROGRAM.name} is not built: make bench-tools"


def is_mounted(mountpoint: Path) -> bool:
    """Whether something is mounted there, also if whoever served it is dead: `os.path.ismount`
    says no then, since not even stat works."""
    wanted = os.path.join(os.path.realpath(mountpoint.parent), mountpoint.name)
    table = Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape")
    points = [line.split(" ")[4] for line in table.splitlines()]
    return wanted in [re.sub(r"\\([0-7]{3})", _octal, point) for point in points]


def _octal(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))


def require() -> Path:
    """The program. Raises ThrottleUnavailable."""
    if lacking := missing():
        raise ThrottleUnavailable(lacking)
    return PROGRAM


def main() -> int:
    """Prints what stands in the way of building; run by `make` with the system's Python."""
    lacking = missing(to_build=True)
    if lacking:
        print(f"bench-tools: {lacking}", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
