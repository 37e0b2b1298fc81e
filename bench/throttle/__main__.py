"""`python -m bench.throttle accuracy`: asked against got. `... mount`: a throttled mount by hand.

Both end with nothing left mounted. `mount` prints how to reach its control socket, and stays until
interrupted.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

from bench.throttle import Throttle, ThrottleUnavailable, accuracy

app = typer.Typer(add_completion=False, help="The throttling file system.")


@app.command("accuracy")
def show_accuracy(
    folder: Annotated[Path, typer.Option("--dir", help="where to make scratch")] = Path("/dev/shm"),
) -> None:
    """Measures each control on a mount of its own and prints asked against got."""
    scratch = Path(tempfile.mkdtemp(prefix="throttle-accuracy-", dir=folder))
    try:
        with Throttle(scratch / "backing", scratch / "mount") as mount:
            before = os.getloadavg()[0]
            print(accuracy.HEADER)
            for line in mount.accuracy():
                print(line)
            print(f"load at the start {before:.1f}, at the end {os.getloadavg()[0]:.1f}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@app.command("mount")
def mount_by_hand(
    backing: Path,
    mountpoint: Path,
    latency_ms: Annotated[float, typer.Option(help="of metadata, open, read and write")] = 0.0,
    bandwidth_mb_s: Annotated[float, typer.Option(help="0: no limit")] = 0.0,
    jitter_ms: float = 0.0,
    quirks: Annotated[str, typer.Option(help="a name from tests/quirks.toml")] = "posix",
    cache: Annotated[bool, typer.Option(help="let the kernel cache")] = False,
) -> None:
    """Mounts BACKING at MOUNTPOINT until interrupted."""
    with Throttle(backing, mountpoint, cache=cache) as mount:
        mount.set(
            latency_ms=latency_ms,
            bandwidth_mb_s=bandwidth_mb_s or None,
            jitter_ms=jitter_ms,
            quirks=quirks,
        )
        print(f"{mountpoint} is mounted; control: {mount.control.socket_path}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(mount.counters())


def main() -> int:
    """Runs the command line; 1 with the remedy where the file system cannot be mounted."""
    try:
        app()
    except ThrottleUnavailable as lacking:
        print(f"bench.throttle: {lacking}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
