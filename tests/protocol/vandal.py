"""Somebody who deletes and damages files of the namespace, never noticed, never announced (I5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.protocol.fleet import Fleet

DIRECTORIES = ("packs", "journals", "snapshots", "realms", "settings")


def vandalise(fleet: Fleet) -> None:
    """Until serving ends: now and then delete, flip, cut or extend a file."""
    world, choice = fleet.world, fleet.world.random
    while fleet.serving:
        world.sleep(choice.expovariate(fleet.scenario.vandal_rate))
        kind = choice.choice(DIRECTORIES)
        paths = sorted(path for path in fleet.disk.nodes if path.startswith(f"{kind}/"))
        if paths and fleet.serving:
            damage(fleet, choice.choice(paths))


def damage(fleet: Fleet, path: str) -> None:
    """One act on one file."""
    choice, disk = fleet.world.random, fleet.disk
    node = disk.nodes[path]
    fleet.oracle.vandalised.add(path)
    act = choice.choice(("delete", "flip", "cut", "extend"))
    fleet.world.say("vandal", f"{act} {path}")
    before = len(node.data)
    if act == "delete" or not node.data:
        disk.unlink(fleet.world.god, path, 0)
        return
    if act == "flip":
        node.data[choice.randrange(before)] ^= 1 << choice.randrange(8)
    elif act == "cut":
        del node.data[choice.randrange(before) :]
    else:
        node.data.extend(choice.randbytes(choice.randrange(1, 5000)))
    disk.bytes_total += len(node.data) - before
