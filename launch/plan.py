"""Plan: what runs on a node, from the settings and what the node has. Pure.

A node gets one LMCache server and R replicas; each replica gets its own GPUs (tensor parallelism
over them) or, on CPUs, its own cores. Nothing is shared between two replicas, and what does not
fit is a `SiteError` that says what the node has. Ports are not planned but taken when a part
starts, since nodes may share one address; replicas announce theirs.

Must not know: processes, Slurm's variables (`facts` reads those), command lines (`commands`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.site import Site, SiteError

PORTS_PER_REPLICA = 1
SERVER_PORTS = 2


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself. `gpus`: indices or UUIDs that this job may use there."""

    name: str
    address: str
    gpus: tuple[str, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One replica: `gpus` for CUDA_VISIBLE_DEVICES, or `cores` for the CPU engine's ranks."""

    name: str
    gpus: tuple[str, ...] = ()
    cores: str = ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All that runs on one node."""

    name: str
    address: str
    replicas: tuple[ReplicaPlan, ...]


def plan_node(site: Site, facts: NodeFacts) -> NodePlan:
    """What this node runs. Raises SiteError where it cannot."""
    make = _on_gpus if site.device == "cuda" else _on_cores
    return NodePlan(facts.name, facts.address, make(site, facts))


def _on_gpus(site: Site, facts: NodeFacts) -> tuple[ReplicaPlan, ...]:
    each, held = site.gpus_per_replica, len(facts.gpus)
    count = site.replicas_per_node or held // each
    if count * each > held or count == 0:
        raise SiteError(
            f"{facts.name}: {count or 'one'} replica(s) of {each} GPU(s) do not fit on the "
            f"{held} GPU(s) this job has there; ask for more with --gpus-per-node, or change "
            "FLEET_GPUS_PER_REPLICA and FLEET_REPLICAS_PER_NODE"
        )
    return tuple(
        ReplicaPlan(f"{facts.name}-{n}", gpus=facts.gpus[n * each : (n + 1) * each])
        for n in range(count)
    )


def _on_cores(site: Site, facts: NodeFacts) -> tuple[ReplicaPlan, ...]:
    count = site.replicas_per_node or 1
    lists = site.cores.split("|") if site.cores else _shared_evenly(facts.cores, count)
    if len(lists) != count:
        raise SiteError(
            f"{facts.name}: FLEET_CORES names {len(lists)} list(s) of cores for {count} replica(s)"
        )
    if not all(lists):
        raise SiteError(
            f"{facts.name}: {count} replicas do not fit on {len(facts.cores)} core(s); ask for "
            "more with --cpus-per-task, or lower FLEET_REPLICAS_PER_NODE"
        )
    return tuple(ReplicaPlan(f"{facts.name}-{n}", cores=cores) for n, cores in enumerate(lists))


def _shared_evenly(cores: Sequence[int], count: int) -> list[str]:
    each = len(cores) // count
    return [",".join(map(str, cores[n * each : (n + 1) * each])) for n in range(count)]


def fixed_ports(first: int, replicas: int) -> tuple[int, ...]:
    """The ports of a node where FLEET_PORT_FIRST is set: the server's two, then the engines'."""
    return tuple(range(first, first + SERVER_PORTS + replicas * PORTS_PER_REPLICA))
