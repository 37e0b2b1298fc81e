"""Somebody who deletes and damages files of the namespace, never noticed, never announced (I5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedfs_backend.layout import PackName, pack_shard_dirs

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


def lose_journals(fleet: Fleet) -> None:
    """Until serving ends: now and then delete a journal while its writer lives and is not at it."""
    world, choice, disk = fleet.world, fleet.world.random, fleet.disk
    while fleet.serving:
        world.sleep(choice.expovariate(fleet.scenario.journal_loss_rate))
        paths = sorted(
            path
            for path, node in disk.nodes.items()
            if path.startswith("journals/") and not disk.writers.get(node.number)
        )
        if paths and fleet.serving:
            path = choice.choice(paths)
            fleet.oracle.vandalised.add(path)
            world.say("vandal", f"delete {path}")
            disk.unlink(world.god, path, 0)


def leave_packs(fleet: Fleet) -> None:
    """Before the fleet: files of packs whose journals and snapshots are all lost."""
    world, choice, disk = fleet.world, fleet.world.random, fleet.disk
    left = fleet.scenario.leftover_bytes
    for directory in ("packs", *pack_shard_dirs()) if left else ():
        disk.make_dir(directory)
    while left > 0:
        size = min(left, choice.randrange(10_000, 60_000))
        name = PackName(choice.randbytes(16), choice.randbytes(8).hex(), 1)
        node = disk.create(world.god, name.path)
        disk.write(world.god.name, node, 0, choice.randbytes(size))
        disk.settle(node)
        node.closed = True
        left -= size
