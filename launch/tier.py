"""The shared tier of a job: its namespace made, warmed from a kept one, and brought back to it.

    python -m launch.tier check                       settings are right; says what will run
    python -m launch.tier init                        namespaces are there, with profile and cap
    python -m launch.tier stage-in                    kept namespace -> this job's, while serving
    python -m launch.tier stage-out LEFT STATE        back, within the time that is left
    python -m launch.tier address                     this node's address and a free port

LEFT and STATE are Slurm's words for the job's time left (`squeue -o %L`) and its state (`-o %T`).
Only the order of things and the arithmetic of time are here; the work is done by `sharedfs init`
and `sharedfs stage`. Exit status: theirs; 2 a setting is wrong.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bench.demo.fleet import free_ports
from launch import commands, facts
from launch.commands import HOSTS_FILE_VARIABLE, Command
from launch.head import say
from launch.plan import plan_node
from launch.premises import check_start
from launch.site import Site, SiteError

RESERVE_SECONDS = 20.0
"""Kept for stopping GekkoFS and for Slurm's own end of the job."""
STAGE_SECONDS_MIN = 5.0
CORES_PER_GPU_MIN = 2
"""Fewer, and an engine's two busy processes and the LMCache server take turns."""
_LEFT = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)")


def seconds_left(text: str) -> float | None:
    """Slurm's [[days-]hours:]minutes:seconds in seconds; None for UNLIMITED and the like."""
    found = _LEFT.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def stage_out_seconds(site: Site, left: float | None) -> float:
    """How long stage-out may take; 0 when it is not worth beginning."""
    seconds = (
        site.stage_seconds if left is None else min(site.stage_seconds, left - RESERVE_SECONDS)
    )
    return seconds if seconds >= STAGE_SECONDS_MIN else 0.0


def is_too_late(site: Site, state: str) -> bool:
    """Whether Slurm is already ending the job's processes, GekkoFS's daemons among them."""
    return bool(site.gekkofs) and state.strip() in {"COMPLETING", "CANCELLED", ""}


def check(site: Site, environ: Mapping[str, str]) -> int:
    """Says what will run. Raises SiteError."""
    found = facts.gather(site, environ)
    plan = plan_node(site, found)
    check_start(site, plan.name)
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    kind = f"{site.gpus_per_replica} GPU(s)" if site.device == "cuda" else "CPU"
    say(f"{nodes} node(s), {len(plan.replicas)} replica(s) of {kind} on each, model {site.model}")
    say(f"namespace {site.namespace}" + (f", kept in {site.kept}" if site.kept else ""))
    if has_few_cores(sum(len(replica.gpus) for replica in plan.replicas), len(found.cores)):
        say(f"{len(found.cores)} core(s) on {plan.name} for all of this: give --cpus-per-task")
    return 0


def has_few_cores(gpus: int, cores: int) -> bool:
    """Whether a node's GPUs would wait for its cores; on CPUs the plan says what does not fit."""
    return cores < gpus * CORES_PER_GPU_MIN


def init(site: Site, hosts_file: str) -> int:
    """Makes the namespaces that are not there yet."""
    roots = dict.fromkeys(root for root in (site.namespace, site.registry, site.kept) if root)
    for root in roots:
        status = _run(commands.init(site, root, hosts_file=hosts_file))
        if status:
            say(f"sharedfs init {root} failed ({status})")
            return status
    return 0


def stage_in(site: Site, hosts_file: str) -> int:
    """Warms the job's namespace; nothing to do without a kept one."""
    if not site.kept:
        return 0
    say(f"staging in from {site.kept}")
    return _run(commands.stage(site, site.kept, site.namespace, None, hosts_file=hosts_file))


def stage_out(site: Site, hosts_file: str, left: str, state: str) -> int:
    """Brings back the most valuable packs; says why when it does not."""
    if not site.kept:
        return 0
    if is_too_late(site, state):
        say(
            "nothing staged out: a plain scancel ends GekkoFS at once; "
            "use scancel --batch --signal=TERM"
        )
        return 0
    seconds = stage_out_seconds(site, seconds_left(left))
    if not seconds:
        say(f"nothing staged out: {left} left")
        return 0
    say(f"staging out to {site.kept}, at most {seconds:.0f} s")
    return _run(commands.stage(site, site.namespace, site.kept, seconds, hosts_file=hosts_file))


def _run(command: Command) -> int:
    environment = {**os.environ, **{k: v for k, v in command.environment.items() if v}}
    return subprocess.run(command.words, env=environment, check=False).returncode


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    given = list(sys.argv[1:] if words is None else words)
    hosts_file = os.environ.get(HOSTS_FILE_VARIABLE, "")
    try:
        site = Site.from_environment(os.environ)
        match given:
            case ["check"]:
                return check(site, os.environ)
            case ["init"]:
                return init(site, hosts_file)
            case ["stage-in"]:
                return stage_in(site, hosts_file)
            case ["address"]:
                print(facts.gather(site, os.environ).address, *free_ports(1))
                return 0
            case ["stage-out", left, state]:
                return stage_out(site, hosts_file, left, state)
    except SiteError as error:
        print(f"launch.tier: {error}", file=sys.stderr)
        return 2
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
