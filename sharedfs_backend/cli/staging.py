"""`sharedfs stage`: two namespaces in, what was copied out. Only shows what `stage` returns.

Interrupted (Ctrl-C or a kill) it leaves nothing half done: what was published stays, and the next
run goes on from there. A deadline counts from the start of the process, as whoever gave it counts.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from sharedfs_backend.cli.options import require_directory, share_as_the_namespace
from sharedfs_backend.cli.output import Output, Status
from sharedfs_backend.cli.sizes import show_size
from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.settings import Settings
from sharedfs_backend.stage import Staged, Stop, stage
from sharedfs_backend.stage.over_ray import stage_over_ray

MB = 1_000_000
LEAST_SECONDS = 0.1
STARTTIME = 19
"""Of the fields of /proc/self/stat behind the command's name: clock ticks since the boot."""


def stage_and_show(
    source: Settings,
    target: Settings,
    bytes_max: int | None,
    deadline_seconds: float | None,
    over_ray: bool,
    output: Output,
) -> Status:
    """Stage, print, and the exit status that says how it went."""
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise ConfigError(f"--deadline = {deadline_seconds:g}: give a number of seconds above 0")
    require_directory(source)
    share_as_the_namespace(target)
    if deadline_seconds is not None:
        deadline_seconds = max(LEAST_SECONDS, deadline_seconds - process_seconds())
    run = stage_over_ray if over_ray else stage
    with output.progress("staging", "MB") as report:
        done = run(
            source,
            target,
            bytes_max=bytes_max,
            deadline_seconds=deadline_seconds,
            progress=lambda done, total: report(done // MB, total // MB),
        )
    _show(done, output)
    return Status.PROBLEMS if _is_short(done) else Status.OK


def with_libraries(
    source: Settings, target: Settings, source_library: str | None, target_library: str | None
) -> tuple[Settings, Settings]:
    """Both sides, each seen through its own client library, or by the kernel. A library that the
    engines' settings name is one side's; which one they cannot say. Raises ConfigError."""
    named = source.client_library
    if named is not None and source_library is None and target_library is None:
        raise ConfigError(
            f"client_library = {named}: say which side it sees, "
            "with --from-library or --to-library (or both)"
        )
    return (
        replace(source, client_library=source_library),
        replace(target, client_library=target_library),
    )


def process_seconds() -> float:
    """How long this process has been running; 0 where nobody can tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        began = int(fields[STARTTIME]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _is_short(done: Staged) -> bool:
    """Something is missing for another reason than time."""
    return done.stopped is Stop.GIVEN_UP or bool(done.failures.keys() - {"not in time", "deadline"})


def _show(done: Staged, output: Output) -> None:
    speed = done.bytes_copied / done.seconds if done.seconds else 0.0
    output.result(
        done.to_dict(),
        [
            ("stopped", done.stopped.value),
            ("packs chosen", f"{done.packs_chosen:,}"),
            ("copied", f"{done.packs_copied:,} ({show_size(done.bytes_copied)})"),
            ("there already", f"{done.packs_present:,} ({show_size(done.bytes_present)})"),
            ("failed", f"{done.packs_failed:,}"),
            ("left", f"{done.packs_left:,}"),
            ("time", f"{done.seconds:.1f} s ({show_size(int(speed))}/s)"),
        ],
        [(reason, f"{count:,}") for reason, count in sorted(done.failures.items())]
        + [
            (f"realm {realm}", "refused: its engines hash otherwise")
            for realm in done.realms_refused
        ],
        ("not copied because", "chunks"),
    )
