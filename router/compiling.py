"""Compiling: a copy of the router whose hot modules are machine code, for sites that want it.

    python -m router.compiling build/compiled        # or `make compile-router`
    PYTHONPATH=build/compiled sharedfs-router ...

The modules of `COMPILED` are translated by mypyc and built by the machine's C compiler; the rest of
the package is copied as it is. Plain Python stays what is installed and what is tested first: the
compiled one decides the same, bit for bit, for less than half the processor time. Needs mypy (of
requirements-dev.lock), setuptools, gcc, and Python's headers.

What it asks of the modules: values made for every request write their constructors out, since a
dataclass's generated one stays interpreted (seven times as slow); they are told `init=False` and
keep their generated comparison and text. Dataclasses name no type of a module that imports theirs.
Protocols of the event loop have no base class, which would make them ordinary Python classes. Two
`except` clauses of a function name what they catch differently. mypyc takes 4 GB for a minute.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

COMPILED = (
    "answers", "appraisal", "asks", "canonical", "choice", "common", "constants", "estimate",
    "exchanges", "feedback", "fleet", "history", "learning", "load", "members", "outcome",
    "policies", "prefix", "replica", "reports", "routes", "scores", "service", "shadow", "tally",
    "tickets", "tidings", "relay/client", "relay/common", "relay/exchange", "relay/heads",
    "relay/limits", "relay/pool", "relay/reader", "relay/transfer", "relay/upstream",
)  # fmt: skip
"""What runs for every request."""

CHECK = """
import router.relay.server, router.fleet, router.relay.client
for module in (router.fleet, router.relay.client):
    assert module.__file__.endswith('.so'), module.__file__
print(router.fleet.__file__)
"""


def compiled(package: Path, into: Path) -> None:
    """Makes `into` anew. CalledProcessError where mypyc or the compiler fails; they have said why.

    Only there are the copies compiled: a `.so` beside a source would hide every later edit."""
    shutil.rmtree(into, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(package, into / package.name, ignore=ignored)
    mypyc = Path(sys.executable).with_name("mypyc")
    modules = [f"{package.name}/{name}.py" for name in COMPILED]
    surroundings = {
        **os.environ,
        "MYPYPATH": str(package.parent),
        "MYPYC_OPT_LEVEL": "2",
        "MYPYC_DEBUG_LEVEL": "0",
    }
    command = [str(mypyc), "--strict", "--follow-imports=silent", *modules]
    subprocess.run(command, cwd=into, env=surroundings, check=True)
    for name in ("build", ".mypy_cache"):
        shutil.rmtree(into / name, ignore_errors=True)
    check = {**os.environ, "PYTHONPATH": f"{into}{os.pathsep}{package.parent}"}
    subprocess.run([sys.executable, "-P", "-c", CHECK], cwd=into.parent, env=check, check=True)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    try:
        compiled(Path(__file__).resolve().parent, Path(arguments[0]).resolve())
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not compiled: {error}; it needs mypy, gcc and Python's headers", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
