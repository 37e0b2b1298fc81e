"""Makes `.venv` and installs the locked packages, once for each content of the lock files.

Run by `make` with the system's Python 3.11 before anything is installed, so: standard library only,
and no import from this repository. `python bench/demo/install.py run` installs what the demo needs,
`... test` what tests need on top. A stamp in `.venv` holds the digest of what was installed; where
it still agrees nothing is done. torch 2.13.0+cpu is not on PyPI: pip's configured sources are asked
first, then PyTorch's own index (TORCH_INDEX overrides its address).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / ".venv"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
LOOPS = "sharedfs_backend/native/loops.c"
LOCKS = {"run": ("requirements.lock",), "test": ("requirements.lock", "requirements-dev.lock")}


def digest(kind: str, repository: Path) -> str:
    """Returns what decides whether an installation is current: locks, project file, Python."""
    total = hashlib.sha256(sys.version.encode())
    for name in (*LOCKS[kind], "pyproject.toml", LOOPS):
        total.update(name.encode() + b"\0" + (repository / name).read_bytes() + b"\0")
    return total.hexdigest()


def stamp(kind: str, repository: Path) -> Path:
    return repository / ".venv" / f".installed-{kind}"


def is_current(kind: str, repository: Path) -> bool:
    """Returns whether what `kind` needs is installed; what tests need includes the rest."""
    covering = [other for other in LOCKS if set(LOCKS[kind]) <= set(LOCKS[other])]
    return any(
        stamp(other, repository).is_file()
        and stamp(other, repository).read_text() == digest(other, repository)
        for other in covering
    )


def torch_pin(lock_text: str) -> str:
    """Returns the lock's line for torch, which may need an index of its own."""
    return next(line for line in lock_text.splitlines() if line.startswith("torch=="))


def pip_commands(
    python: Path, locks: Iterable[Path], torch: str, index: str
) -> tuple[list[str], list[str], list[list[str]]]:
    """Returns (torch from the configured sources, torch from its own index, all the rest)."""
    pip = [str(python), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    pip += ["--no-input", "-qq"]  # Errors only.
    plain = [*pip, torch]
    fallback = [*pip, "--extra-index-url", index, torch]
    rest = [[*pip, *(word for lock in locks for word in ("-r", str(lock)))]]
    rest += [[*pip, "--no-build-isolation", "-e", str(REPOSITORY)]]
    return plain, fallback, rest


def install(kind: str, environment: Mapping[str, str]) -> None:
    """Brings `.venv` up to date for "run" or "test"; SystemExit says what to do on failure."""
    if is_current(kind, REPOSITORY):
        return
    locks = [REPOSITORY / name for name in LOCKS[kind]]
    python = VENV / "bin" / "python"
    if not python.exists():
        say(f"making {VENV.relative_to(REPOSITORY)} with Python {sys.version.split()[0]}")
        make_venv()
    say("installing the locked packages (about 2.4 GB on disk, a few minutes)")
    torch = torch_pin(locks[0].read_text())
    index = environment.get("TORCH_INDEX") or TORCH_INDEX
    plain, fallback, rest = pip_commands(python, locks, torch, index)
    if subprocess.run(plain, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        say(f"{torch} is not in pip's configured sources: asking {index}")
        run(fallback)
    for command in rest:
        run(command)
    if not list((REPOSITORY / LOOPS).parent.glob("_loops*.so")):
        say("no C compiler: the store's inner loops run in Python, with the same results (gcc)")
    stamp(kind, REPOSITORY).write_text(digest(kind, REPOSITORY))


def make_venv() -> None:
    """Makes the virtual environment, or says which package of the system is missing."""
    command = [sys.executable, "-m", "venv", str(VENV)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}\n"
            "On Debian and Ubuntu: apt install python3-venv"
        )


def run(command: list[str]) -> None:
    """Runs one pip command with its output shown."""
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(
            f"failed: {' '.join(command)}\n"
            "Is a package index reachable (pip config list)? TORCH_INDEX names torch's."
        )


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LOCKS:
        raise SystemExit(f"usage: install.py {{{'|'.join(LOCKS)}}}")
    install(sys.argv[1], os.environ)
