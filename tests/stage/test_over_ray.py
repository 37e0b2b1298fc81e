"""The work dealt to several nodes, by a Ray that runs its tasks here and now."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.stage import Stop
from sharedfs_backend.stage.over_ray import stage_over_ray
from tests.stage.test_stage import filled, held
from tests.store.inline import settings_for

NODES = 2


class RayError(Exception):
    """What Ray raises in place of a lost task's result."""


class FakeRay(ModuleType):
    """As much of Ray as is used: a task is carried out when its result is asked for."""

    def __init__(self, lost: int | None = None) -> None:
        super().__init__("ray")
        self.tasks: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = RayError  # type: ignore[attr-defined] # as Ray's
        self._lost = lost

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        assert options["address"] == "auto"

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}] * NODES + [{"Alive": False}]

    def remote(self, **options: object) -> Callable[[Callable[..., Any]], Any]:
        self.options = options

        def wrap(function: Callable[..., Any]) -> Any:
            def submit(*words: object) -> int:
                self.tasks.append((function, words))
                return len(self.tasks) - 1

            wrapped = ModuleType("task")
            wrapped.remote = submit  # type: ignore[attr-defined] # as Ray's
            return wrapped

        return wrap

    def wait(self, references: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        return references[:num_returns], references[num_returns:]

    def get(self, references: list[int]) -> list[Any]:
        if self._lost in references:
            raise RayError("a long story\nNode n2 died\n")
        return [self.tasks[at][0](*self.tasks[at][1]) for at in references]


def test_each_node_gets_its_share_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    contents = filled(tmp_path / "from", 5)
    seen: list[tuple[int, int]] = []
    done = stage_over_ray(
        settings_for(tmp_path / "from"),
        settings_for(tmp_path / "to"),
        progress=lambda *pair: seen.append(pair),
    )
    assert (done.stopped, done.packs_copied, done.packs_chosen) == (Stop.DONE, 5, 5)
    assert [len(words[2]) for _, words in ray.tasks] == [3, 2]
    assert held(tmp_path / "to", contents) == [True] * 5
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_lost_tasks_packs_count_as_left_and_the_others_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(lost=1))
    contents = filled(tmp_path / "from", 5)
    seen: list[tuple[int, int]] = []
    done = stage_over_ray(
        settings_for(tmp_path / "from"),
        settings_for(tmp_path / "to"),
        progress=lambda *pair: seen.append(pair),
    )
    assert (done.stopped, done.packs_copied, done.packs_left) == (Stop.GIVEN_UP, 3, 2)
    assert done.failures == {"packs dealt to a task that failed: Node n2 died": 2}
    assert sum(held(tmp_path / "to", contents)) == 3 and seen[-1][0] == seen[-1][1]


def test_tasks_find_this_package_wherever_ray_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    filled(tmp_path / "from", 1)
    stage_over_ray(settings_for(tmp_path / "from"), settings_for(tmp_path / "to"))
    path = ray.options["runtime_env"]["env_vars"]["PYTHONPATH"].split(":")
    assert (Path(path[0]) / "sharedfs_backend" / "stage").is_dir() and path[1] == "${PYTHONPATH}"


def test_without_ray_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="leave --ray out"):
        stage_over_ray(settings_for(tmp_path / "from"), settings_for(tmp_path / "to"))
