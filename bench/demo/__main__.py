"""`python -m bench.demo`: two real engines reuse each other's KV through one directory.

Starts two replicas and the router, runs the scenario and some conversations in which one replica
dies, prints the tables, stops everything. Exit codes: 0 when every line is as it had to be, 1 when
one is not (it is named), 2 when the fleet could not be run, 130 after Ctrl-C. Everything it makes
lies below `.demo/`, but for a namespace given by NAMESPACE.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from bench.demo import namespace, report
from bench.demo.client import RequestFailed
from bench.demo.conversations import Conversations, Decided, Talk, judge
from bench.demo.fleet import Fleet, FleetError
from bench.demo.front import Front
from bench.demo.model import ModelError, ensure_model_apart
from bench.demo.namespace import Contents, NamespaceFailed
from bench.demo.replica_spec import REPOSITORY, ReplicaSpec, plugin_adapter
from bench.demo.scenario import Plan, Row, Scenario

WORK = REPOSITORY / ".demo"


def demo(
    small: Annotated[bool, typer.Option(help="A shorter run: one prompt each, two turns.")] = False,
    fs_native: Annotated[
        bool, typer.Option(hidden=True, help="LMCache's own adapter instead, for the driver.")
    ] = False,
) -> None:
    """Shows two replicas sharing KV through one directory (NAMESPACE, or one below .demo/)."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    # Also where a shell started us in the background, which ignores SIGINT for its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _terminate)
    try:
        code = run(console, small=small, fs_native=fs_native)
    except (FleetError, ModelError, NamespaceFailed, RequestFailed) as error:
        console.print(f"FAILED: {error}", markup=False, highlight=False)
        code = 2
    except OSError as error:
        console.print(f"FAILED: {error}", markup=False, highlight=False)
        code = 2
    except KeyboardInterrupt:
        console.print("stopped")
        code = 130
    raise typer.Exit(code)


def run(console: Console, *, small: bool, fs_native: bool) -> int:
    """Returns the exit code of a whole run; the fleet is gone when it returns or raises."""
    begin = time.monotonic()
    choice = namespace.choose(os.environ.get("NAMESPACE"), WORK / "namespace")
    console.print(f"namespace: {choice.root} ({choice.reason})", highlight=False)
    if fs_native:
        adapter: dict[str, object] = {"type": "fs_native", "base_path": str(choice.root)}
    else:
        namespace.initialise(choice.root)
        adapter = plugin_adapter(choice.root)
    model = ensure_model_apart(WORK / "model")
    cores = sorted(os.sched_getaffinity(0))
    specs = [
        ReplicaSpec(name, model, core=str(cores[i % len(cores)]), adapter=adapter)
        for i, name in enumerate(("A", "B"))
    ]
    # An existing namespace may hold an earlier run's prompts: then draw others.
    seed = f"demo-{secrets.token_hex(4)}" if choice.may_hold_prompts else "demo"
    plan, talk = Plan(seed=seed), Talk()
    if small:
        plan = Plan((1100,), (1025,), 2, 800, 300, 1200, seed=seed)
        talk = Talk(conversations=2)

    with console.status("starting") as status:

        def say(text: str) -> None:
            seconds = time.monotonic() - begin
            console.print(f"{seconds:6.1f} s  {text}", highlight=False, markup=False)
            status.update(text)

        with Fleet(WORK / "logs") as fleet:
            say(f"starting two replicas (one to two minutes; logs in {fleet.logs})")
            first, second = fleet.start(*specs)
            front = Front(fleet, (first, second))
            say("starting the router in front of them")
            front.start()
            scenario = Scenario(first, second, plan, say, front)
            conversations = Conversations(front, talk, seed, say)
            try:
                scenario.run()
                conversations.run()
            except (FleetError, RequestFailed):
                report.show(console, scenario.rows)
                raise
            say("stopping everything")
    contents = None if fs_native else namespace.contents(choice.root)
    wrong = judge(conversations.rows, conversations.killed)
    seconds = time.monotonic() - begin
    return conclude(console, scenario.rows, contents, seconds, conversations.rows, wrong)


def conclude(
    console: Console,
    rows: Sequence[Row],
    contents: Contents | None,
    seconds: float,
    decided: Sequence[Decided] = (),
    wrong: Sequence[str] = (),
) -> int:
    """Prints the tables and the verdict; returns the exit code. `wrong`: about `decided`."""
    console.print()
    report.show(console, rows)
    if decided:
        report.show_decided(console, decided)
    if contents is not None:
        console.print(f"in the namespace: {report.contents_line(contents)}", highlight=False)
    failed = [*report.failures(rows), *wrong] or ([] if rows else ["nothing was measured"])
    for line in failed:
        console.print(f"FAILED: {line}", style="bold red", markup=False, highlight=False)
    if failed:
        return 1
    count = len(rows) + len(decided)
    console.print(f"all {count} lines as they had to be, in {seconds:.0f} s", highlight=False)
    return 0


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(demo)
