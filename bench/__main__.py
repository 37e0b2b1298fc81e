"""One command for each question: `python -m bench list | run NAME... | report`.

    python -m bench list                       the questions, how long each takes, what it needs
    python -m bench run reload ceiling         some of them; `run all` runs every one
    python -m bench run all --full             the long profile
    python -m bench run all --resume           goes on with the newest run: what is complete stays
    python -m bench report                     the page of the newest run

Each case of `run` is a process of its own, so one that dies costs only itself. Results are in
.bench/<run>/<case>.parquet, saved as they come. Exit status: 0, 1 when a case failed, 130 when
interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.core.case import FULL, LEFT_OUT, QUICK, Case
from bench.core.machine import REPOSITORY, now
from bench.core.needs import missing
from bench.core.progress import Shown
from bench.core.registry import Registry, registry
from bench.core.runner import Order, is_complete, new_run, newest_run, run_case
from bench.core.scratch import problem as scratch_problem
from bench.core.select import unmeasured
from bench.report.write import NothingToReport, write
from bench.workloads.registry import from_file

RESULTS = REPOSITORY / ".bench"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 << 30

app = typer.Typer(add_completion=False, no_args_is_help=True, help=(__doc__ or "").split("\n")[0])
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def quietly() -> None:
    """Before LMCache and vLLM are imported: what is shown is our progress."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("sharedfs_backend").setLevel(logging.ERROR)


@app.command("list")
def list_cases() -> None:
    """The questions, how long each takes, and what it needs."""
    found = registry()
    table = Table("case", "question", "quick, min", "full, min", "missing")
    for case in found.cases.values():
        minutes = [f"{case.minutes[profile]:g}" for profile in (QUICK, FULL)]
        table.add_row(case.name, case.question, *minutes, "; ".join(missing(case.needs)))
    out.print(table)
    for name, why in found.broken.items():
        out.print(f"bench/cases/{name}.py cannot be used: {why}")


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(help="cases, or `all`")],
    full: Annotated[bool, typer.Option("--full/--quick", help="the long profile")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="where to make scratch directories")
    ] = None,
    only: Annotated[str, typer.Option(help="contenders or parts of a case, comma-separated")] = "",
    rounds: Annotated[
        int, typer.Option(min=0, help="at most, of any part; 0: the profile's own number")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="of generated data and orders")] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="requests of a file in place of generated ones: .jsonl with hash_ids, .json of "
            "ShareGPT, .csv of BurstGPT",
            exists=True,
            dir_okay=False,
            resolve_path=True,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the newest run")] = False,
    into: Annotated[Path | None, typer.Option(help="folder of the results")] = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Measure. Results are saved after each case; `report` makes the page."""
    found = registry()
    chosen = _chosen(found, names)
    profile = FULL if full else QUICK
    folder = into or (newest_run(RESULTS) if resume else None)
    folder = folder or new_run(RESULTS, profile, now())
    directory = directory or _scratch()
    parts = _parts(found, chosen, only)
    if not child:
        _check_parts(found, chosen, parts)
        _check_trace(found, chosen, trace)
        if why := scratch_problem(directory):
            raise SystemExit(f"--dir {why}")
    with contextlib.nullcontext() if child else _held(folder):
        if child or len(chosen) == 1:
            shown = f"python -m bench {shlex.join(_shown(sys.argv[1:]))}"
            order = Order(
                profile=profile,
                directory=directory,
                rounds=rounds,
                seed=seed,
                only=parts,
                trace=trace,
                command=os.environ.get("BENCH_COMMAND", shown),
            )
            raise typer.Exit(max(_run_one(found, name, order, folder) for name in chosen))
        words = [f"--{profile}", f"--rounds={rounds}", f"--seed={seed}", f"--only={only}"]
        words += [f"--dir={directory}"] if directory else []
        words += [f"--trace={trace}"] if trace else []
        command = f"python -m bench {shlex.join(_shown(sys.argv[1:]))}"
        _announce([found.cases[name] for name in chosen], profile, folder)
        status = 0
        for name in chosen:
            words_of_case = ["run", name, *words, "--child", f"--into={folder}"]
            ended = _wait(
                subprocess.Popen(
                    [sys.executable, "-m", "bench", *words_of_case],
                    env=os.environ | {"BENCH_COMMAND": command},
                    cwd=REPOSITORY,
                )
            )
            if ended in (130, -signal.SIGINT, -signal.SIGTERM):
                raise typer.Exit(130)
            if ended not in (0, 1):
                err.print(f"{name}: the case's process ended with status {ended}")
            status = max(status, 1 if ended else 0)
        out.print(f"results: {folder}")
        raise typer.Exit(status)


def _announce(cases: Sequence[Case], profile: str, folder: Path) -> None:
    """What is about to run, and how long it should take."""
    done = [case.name for case in cases if is_complete(case.name, folder)]
    left = [case for case in cases if case.name not in done]
    each = ", ".join(f"{case.name} {case.minutes[profile]:g}" for case in left)
    err.print(f"{len(left)} cases {_expected(left, profile)}: {each}; results in {folder.name}")
    if done:
        err.print(f"complete already: {', '.join(done)}")


def _expected(cases: Sequence[Case], profile: str) -> str:
    minutes = sum(case.minutes[profile] for case in cases)
    text = f"{minutes / 60:.1f} h" if minutes > 90 else f"{minutes:.2g} min"
    return f"(about {text} on a quiet machine with two cores)"


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its status; 130 after an interrupt. That mostly reaches the case's process too, which saves
    before it ends, and is the last in any case; a termination is passed on."""
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    is_interrupted = False
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            is_interrupted = True
            continue
        return 130 if is_interrupted else status


def _interrupted(*_: object) -> None:
    """A termination ends a case as an interrupt does: saved, unmounted, its scratch removed."""
    raise KeyboardInterrupt


def _run_one(found: Registry, name: str, order: Order, folder: Path) -> int:
    case = found.cases[name]
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupted)
    err.print(f"[bold]{name}[/bold]: {case.question} {_expected([case], order.profile)}")
    try:
        with Shown(name) as progress:
            saved = run_case(case, order, folder, progress)
    except KeyboardInterrupt:
        err.print(f"{name}: interrupted; go on with `python -m bench run ... --resume`")
        return 130
    for text in saved.origin.warnings:
        err.print(f"{name}: [yellow]{text}[/yellow]")
    if saved.origin.failure:
        err.print(f"{name}: not complete: {saved.origin.failure}")
    lost = [row.note for row in unmeasured(saved.rows) if row.metric not in (LEFT_OUT, "case")]
    if lost:
        (most, count), *_ = Counter(lost).most_common(1)
        text = f"{len(lost)} values could not be measured, {count} of them: {most}"
        err.print(f"{name}: {text}", markup=False)
    for verdict in case.verdicts(saved.rows):
        err.print(f"  {verdict.outcome.value}: {verdict.name} ({verdict.target})")
    minutes = (time.monotonic() - began) / 60
    out.print(f"{name}: {minutes:.1f} min, {len(saved.rows)} rows in {folder}")
    return 1 if saved.origin.failure and not missing(case.needs) else 0


@app.command()
def report(
    run_folders: Annotated[list[Path] | None, typer.Argument(help="folders of results")] = None,
    docs: Annotated[bool, typer.Option("--docs", help="also write docs/RESULTS.md")] = False,
) -> None:
    """Write the page of a run (the newest unless some are named; several make one page). Exit
    status 1 where a file of results could not be read."""
    newest = newest_run(RESULTS)
    folders = run_folders or ([newest] if newest is not None else [])
    if not folders:
        raise SystemExit("no results yet: python -m bench run all")
    command = f"python -m bench report {'RUN... ' if len(folders) > 1 else ''}--docs"
    unreadable: list[str] = []
    target = REPOSITORY / "docs" if docs else None
    try:
        path = write(folders, target, command, unreadable.append)
    except NothingToReport as error:
        raise SystemExit("\n".join([*unreadable, str(error)])) from None
    except OSError as error:
        raise SystemExit(f"the report cannot be written: {error}") from None
    for text in unreadable:
        err.print(f"left out: {text}", markup=False)
    out.print(f"{path}", markup=False)
    raise typer.Exit(1 if unreadable else 0)


def _chosen(found: Registry, names: list[str]) -> list[str]:
    if "all" in names:
        return list(found.cases)
    for name in names:
        if name not in found.cases:
            why = found.broken.get(name, f"choose from {', '.join(found.cases)}, or all")
            raise SystemExit(f"no case {name!r}: {why}")
    return names


def _parts(found: Registry, chosen: list[str], only: str) -> tuple[str, ...]:
    """What `--only` names. Names may hold commas: the longest that is known is taken."""
    known = {part for name in chosen for part in getattr(found.cases[name], "selectable", ())}
    words, parts = [word.strip() for word in only.split(",")], list[str]()
    while words:
        lengths = range(len(words), 0, -1)
        count = next((n for n in lengths if ", ".join(words[:n]) in known), 1)
        parts.append(", ".join(words[:count]))
        words = words[count:]
    return tuple(filter(None, parts))


def _check_parts(found: Registry, chosen: list[str], parts: tuple[str, ...]) -> None:
    """Each must be one of a chosen case: a misspelt one would mean everything, or nothing."""
    known = {name: getattr(found.cases[name], "selectable", ()) for name in chosen}
    each = "; ".join(f"{name}: {', '.join(names)}" for name, names in known.items() if names)
    for part in parts:
        if not any(part in names for names in known.values()):
            raise SystemExit(f"--only {part}: choose from {each or 'no parts of these cases'}")


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The run's folder, made, for this process alone."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / ".held").open("w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{folder}: another run is writing its results there") from None
        except OSError as error:
            raise SystemExit(f"--into {folder}: {error.strerror}") from None
        yield


def _check_trace(found: Registry, chosen: list[str], trace: Path | None) -> None:
    """It can be read, and each case takes one: else generated requests would pass for it."""
    taking = [name for name in found.cases if getattr(found.cases[name], "takes_trace", False)]
    if trace is None:
        return
    if others := [name for name in chosen if name not in taking]:
        raise SystemExit(f"--trace: {others[0]} takes none; these do: {', '.join(taking)}")
    try:
        from_file(trace, requests_max=1)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--trace: {error}") from None


def _scratch() -> Path | None:
    """Memory where there is enough of it: a disk's own speed is then no part of a comparison."""
    try:
        stat = os.statvfs(MEMORY)
    except OSError:
        return None
    return MEMORY if stat.f_bavail * stat.f_frsize >= MEMORY_BYTES_MIN else None


def _shown(words: list[str]) -> list[str]:
    """The command without this machine's paths."""
    hidden = {"--dir": "DIR", "--into": "RUN", "--trace": "FILE"}
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, _ = word.partition("=")
        joined = f"{option}={hidden[option]}" if equals and option in hidden else word
        shown.append(hidden.get(before, joined))
    return shown


if __name__ == "__main__":
    quietly()
    app()
