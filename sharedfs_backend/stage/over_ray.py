"""Staging as Ray tasks: the packs dealt to the nodes in turn, so that each begins with the best.

Ray is imported only here, and only when asked for. Every node must see both namespaces under the
same paths. The driver chooses; a task is an ordinary run over the packs it was dealt, so what was
said of deadlines, repeating and verifying holds for each. Where a task is lost with its node, what
it was dealt counts as left, and the other tasks go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.layout import PackName
from sharedfs_backend.runtime import ThreadRuntime
from sharedfs_backend.settings import Settings
from sharedfs_backend.stage.choosing import Choice
from sharedfs_backend.stage.moving import Progress, Staged, Stop, chosen, stage

LOST = "packs dealt to a task that failed: "


def stage_over_ray(
    source: Settings,
    target: Settings,
    *,
    bytes_max: int | None = None,
    deadline_seconds: float | None = None,
    progress: Progress = lambda done, total: None,
) -> Staged:
    """As `stage`, on every node of the Ray cluster that this machine belongs to. Raises
    ConfigError where there is no Ray."""
    now = ThreadRuntime().now
    started = now()
    ray = _ray()
    choices = chosen(source, bytes_max)
    total = sum(choice.total_bytes for choice in choices)
    nodes = max(1, sum(bool(node.get("Alive")) for node in ray.nodes()))
    task = ray.remote(
        num_cpus=1,
        scheduling_strategy="SPREAD",
        max_retries=0,
        runtime_env={"env_vars": {"PYTHONPATH": _python_path()}},
    )(_stage_some)
    running: dict[Any, list[Choice]] = {}
    for number in range(min(nodes, len(choices))):
        mine = choices[number::nodes]
        left = None if deadline_seconds is None else deadline_seconds - (now() - started)
        reference = task.remote(source, target, [choice.name for choice in mine], left)
        running[reference] = mine
    results: list[Staged] = []
    done_bytes = 0
    while running:
        ready, _ = ray.wait(list(running), num_returns=1)
        for reference in ready:
            mine = running.pop(reference)
            try:
                results += ray.get([reference])
            except ray.exceptions.RayError as error:
                results.append(_lost(mine, error))
            done_bytes += sum(choice.total_bytes for choice in mine)
        progress(done_bytes, total)
    return joined(results, now() - started)


def _stage_some(
    source: Settings, target: Settings, names: Sequence[PackName], deadline_seconds: float | None
) -> Staged:
    """One node's part."""
    return stage(source, target, deadline_seconds=deadline_seconds, only=names)


def _lost(choices: Sequence[Choice], error: Exception) -> Staged:
    """Of a task that gave no answer. What it copied first is there, and found the next time."""
    lines = str(error).strip().splitlines()
    return Staged(
        stopped=Stop.GIVEN_UP,
        packs_chosen=len(choices),
        packs_copied=0,
        packs_present=0,
        packs_failed=0,
        packs_left=len(choices),
        chunks_copied=0,
        bytes_copied=0,
        bytes_present=0,
        seconds=0.0,
        failures={LOST + (lines[-1] if lines else type(error).__name__): len(choices)},
    )


def _python_path() -> str:
    """Ray's workers look for modules where Ray was started, not where this was: a checkout, say.
    Ray fills in what its node has."""
    return __file__.rsplit("/", 3)[0] + ":${PYTHONPATH}"


def joined(results: Sequence[Staged], seconds: float) -> Staged:
    """What all parts did together. It is done only if all are; giving up outweighs a deadline."""
    failures: Counter[str] = Counter()
    for result in results:
        failures.update(result.failures)
    stops = {result.stopped for result in results}
    order = (Stop.GIVEN_UP, Stop.DEADLINE, Stop.DONE)

    def total(count: Callable[[Staged], int]) -> int:
        return sum(map(count, results))

    return Staged(
        stopped=next((stop for stop in order if stop in stops), Stop.DONE),
        packs_chosen=total(lambda part: part.packs_chosen),
        packs_copied=total(lambda part: part.packs_copied),
        packs_present=total(lambda part: part.packs_present),
        packs_failed=total(lambda part: part.packs_failed),
        packs_left=total(lambda part: part.packs_left),
        chunks_copied=total(lambda part: part.chunks_copied),
        bytes_copied=total(lambda part: part.bytes_copied),
        bytes_present=total(lambda part: part.bytes_present),
        seconds=seconds,
        failures=dict(failures),
        realms_refused=tuple(sorted({realm for part in results for realm in part.realms_refused})),
    )


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--ray: Ray is not installed here; pip install ray, or leave --ray out"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:
            raise ConfigError(
                "--ray: no Ray cluster is running here; start one (ray start --head), or leave "
                "--ray out"
            ) from None
    return ray
