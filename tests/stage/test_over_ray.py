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


class FakeRay(ModuleType):
    """As much of Ray as is used: a task is carried out when its result is asked for."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.tasks: list[tuple[Any, ...]] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        assert options["address"] == "auto"

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}] * NODES + [{"Alive": False}]

    def remote(self, **options: object) -> Callable[[Callable[..., Any]], Any]:
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


def test_without_ray_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="leave --ray out"):
        stage_over_ray(settings_for(tmp_path / "from"), settings_for(tmp_path / "to"))
