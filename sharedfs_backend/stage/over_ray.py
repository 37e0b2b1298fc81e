"""Staging as Ray tasks: the packs dealt to the nodes in turn, so that each begins with the best.

Ray is imported only here, and only when asked for. Every node must see both namespaces under the
same paths. The driver chooses; a task is an ordinary run over the packs it was dealt, so what was
said of deadlines, repeating and verifying holds for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.layout import PackName
from sharedfs_backend.runtime import ThreadRuntime
from sharedfs_backend.settings import Settings
from sharedfs_backend.stage.moving import Progress, Staged, Stop, chosen, stage


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
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_retries=0)(_stage_some)
    running: dict[Any, int] = {}
    for number in range(min(nodes, len(choices))):
        mine = choices[number::nodes]
        left = None if deadline_seconds is None else deadline_seconds - (now() - started)
        reference = task.remote(source, target, [choice.name for choice in mine], left)
        running[reference] = sum(choice.total_bytes for choice in mine)
    results: list[Staged] = []
    done_bytes = 0
    while running:
        ready, _ = ray.wait(list(running), num_returns=1)
        done_bytes += sum(running.pop(reference) for reference in ready)
        results += ray.get(ready)
        progress(done_bytes, total)
    return joined(results, now() - started)


def _stage_some(
    source: Settings, target: Settings, names: Sequence[PackName], deadline_seconds: float | None
) -> Staged:
    """One node's part."""
    return stage(source, target, deadline_seconds=deadline_seconds, only=names)


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
