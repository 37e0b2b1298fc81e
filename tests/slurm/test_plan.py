"""Which GPUs and cores each replica of a node gets, and what does not fit."""

from __future__ import annotations

import pytest

from launch.plan import NodeFacts, ReplicaPlan, fixed_ports, plan_node
from launch.site import Site, SiteError


def plan(gpus: int = 0, cores: int = 0, **settings: object) -> tuple[ReplicaPlan, ...]:
    facts = NodeFacts("n1", "10.0.0.1", tuple(map(str, range(gpus))), tuple(range(cores)))
    settings = {name.rstrip("_"): value for name, value in settings.items()}
    site = Site(model="m", namespace="/kv", **settings)  # type: ignore[arg-type]
    return plan_node(site, facts).replicas


def test_a_replica_for_each_gpu() -> None:
    assert [r.gpus for r in plan(gpus=3)] == [("0",), ("1",), ("2",)]


def test_tensor_parallel_replicas_share_no_gpu() -> None:
    assert [r.gpus for r in plan(gpus=5, gpus_per_replica=2)] == [("0", "1"), ("2", "3")]


def test_fewer_replicas_where_the_site_says_so() -> None:
    assert [r.name for r in plan(gpus=4, replicas_per_node=2)] == ["n1-0", "n1-1"]


@pytest.mark.parametrize(
    "settings",
    [{"gpus": 0}, {"gpus": 3, "gpus_per_replica": 4}, {"gpus": 2, "replicas_per_node": 3}],
)
def test_what_does_not_fit_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(SiteError, match="do not fit on the"):
        plan(**settings)


def test_cores_are_shared_evenly() -> None:
    shared = plan(cores=5, device="cpu", replicas_per_node=2)
    assert [r.cores for r in shared] == ["0,1", "2,3"]


def test_cores_as_the_site_gives_them() -> None:
    given = plan(cores=8, device="cpu", replicas_per_node=2, cores_="0-3|4-7")
    assert [r.cores for r in given] == ["0-3", "4-7"]


def test_more_replicas_than_cores_are_refused() -> None:
    with pytest.raises(SiteError, match="do not fit on 1 core"):
        plan(cores=1, device="cpu", replicas_per_node=2)


def test_fixed_ports_are_a_row_without_gaps() -> None:
    assert fixed_ports(7000, 3) == (7000, 7001, 7002, 7003, 7004)
