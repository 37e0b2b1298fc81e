"""What must be true of a fleet: while it runs, after trouble has ended, and for a fresh process.

Each check cites the invariant it defends. What a single request can show is checked where it is
made (`process.py`), what a single write can show by the disk and the oracle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedfs_backend.files.health import HealthPolicy
from sharedfs_backend.layout import PackName
from tests.protocol.content import LAYOUT, REALMS, Document
from tests.protocol.oracle import PackFacts
from tests.protocol.process import Process
from tests.protocol.scenario import LEASE_SECONDS

if TYPE_CHECKING:
    from tests.protocol.fleet import Fleet

SETTLE_SECONDS = 6 * LEASE_SECONDS
"""Dead writers are known as such after one lease; the next orphan pass, a lease of being unnamed,
a pass to act on it, the drop delay: everything the protocol still owes is done after this."""
SLACK_SECONDS = 3.0
BREAKER_SECONDS = HealthPolicy().probe_seconds_max


def final(fleet: Fleet) -> None:
    """Rest, then: nothing owed is left, and a fresh process finds everything promised."""
    world = fleet.world
    if not fleet.alive():
        fleet.spawn("last")
    world.run(fleet.scenario.settle_seconds or SETTLE_SECONDS)
    if fleet.disk.violations:
        return
    nothing_left_over(fleet)
    fleet.lender.check()
    for process in fleet.alive():
        no_promise_is_lost(fleet, process)
    for client in list(world.clients.values()):
        world.kill(client)
    if not fleet.disk.violations:
        fresh(fleet)
        fleet.lender.check()


def fresh(fleet: Fleet) -> None:
    """A new process finds every promised chunk, and loads it whole (I2, I4)."""
    process = fleet.spawn("fresh")
    fleet.world.run(find_seconds(fleet, process) + LEASE_SECONDS / 2)
    if not fleet.disk.violations:
        no_promise_is_lost(fleet, process)
    if not fleet.disk.violations:
        task = fleet.world.start(process.client, "load", lambda: loads_everything(fleet, process))
        fleet.world.run_all([task], 1000.0)


def promised(fleet: Fleet) -> list[PackFacts]:
    """Packs whose writer was told that they are stored, and which nobody dropped."""
    if fleet.scenario.vandal_rate:
        return []  # deleting files costs hits
    gone = fleet.oracle.vandalised
    return [
        facts
        for facts in fleet.oracle.packs.values()
        if facts.told is not None and facts.live and facts.name.path not in gone
    ]


def find_seconds(fleet: Fleet, process: Process) -> float:
    """Bound of I4 as seen by a process, with the age of one listing."""
    store = process.store
    pass_seconds = store.parts.refresher.pass_seconds if store is not None else 1.0
    return 2 * pass_seconds + fleet.disk.quirks.listing_stale_seconds + SLACK_SECONDS


def everyone_finds(fleet: Fleet) -> None:
    """What was committed a while ago is known to every undisturbed process (I4)."""
    now = fleet.world.time
    for process in fleet.alive():
        bound = find_seconds(fleet, process)
        since = max(process.opened_at, recovered(fleet, process))
        if now - since < bound + SLACK_SECONDS:
            continue
        for facts in fleet.oracle.packs.values():
            dropped = facts.dropped if facts.dropped is not None else facts.gone
            if dropped is not None and now - max(dropped, since) > bound:
                stays_dropped(fleet, process, facts)
        if fleet.scenario.journal_loss_rate:
            continue  # what is lost with a journal is said again, but not within the bound
        for facts in promised(fleet):
            assert facts.committed is not None
            if now - max(facts.committed, since) > bound and not knows(process, facts.name):
                fleet.disk.violate(
                    f"{process.client} does not know {facts.name.path}, committed "
                    f"{now - facts.committed:.1f} s ago (I4, bound {bound:.1f} s)"
                )
                return


def recovered(fleet: Fleet, process: Process) -> float:
    """When the last disturbance of a process was over for it: a freeze looks like a hang, and its
    breaker asks again only after a wait (I6). A breaker that stays open longer is no excuse."""
    assert process.store is not None
    name, now = process.client.name, fleet.world.time
    thawed = fleet.chaos.disturbed.get(name, 0.0)
    if not process.store.healthy and now - thawed <= BREAKER_SECONDS:
        fleet.sick_at[name] = now
    return max(thawed, fleet.sick_at.get(name, 0.0))


def knows(process: Process, name: PackName) -> bool:
    """Whether a process has read the pack's commit."""
    assert process.store is not None
    pack = process.store.parts.ledger.pack(name)
    return pack is not None and pack.committed


def stays_dropped(fleet: Fleet, process: Process, facts: PackFacts) -> None:
    """A drop kills a name for ever (I1, I5)."""
    assert process.store is not None
    pack = process.store.parts.ledger.pack(facts.name)
    if pack is not None and pack.live and not fleet.scenario.vandal_rate:
        fleet.disk.violate(f"{process.client} holds {facts.name.path} for live, which was dropped")


def no_promise_is_lost(fleet: Fleet, process: Process) -> None:
    """Every promised pack exists, and this process knows it (I4, I5)."""
    for facts in fleet.oracle.packs.values():
        if facts.dropped is not None or facts.gone is not None:
            stays_dropped(fleet, process, facts)
    for facts in promised(fleet):
        if facts.name.path not in fleet.disk.nodes:
            fleet.disk.violate(f"{facts.name.path} was promised and does not exist")
            return
        if not knows(process, facts.name):
            fleet.disk.violate(f"{process.client} never learns of {facts.name.path} (I4)")
            return


def nothing_left_over(fleet: Fleet) -> None:
    """Dropped packs are gone, orphans of the dead are cleared (where that is done online)."""
    for path in fleet.disk.children("packs"):
        for base in fleet.disk.children(f"packs/{path}"):
            name = PackName.parse(base)
            facts = fleet.oracle.facts(name)
            if facts.live or fleet.scenario.vandal_rate:
                continue
            if facts.dropped is None and fleet.scenario.fs == "gekkofs":
                continue
            what = "dropped" if facts.dropped is not None else "an orphan"
            fleet.disk.violate(f"{name.path} is {what} and still there after the rest")
            return


def loads_everything(fleet: Fleet, process: Process) -> None:
    """Every promised chunk loads, byte for byte."""
    assert process.store is not None
    for facts in promised(fleet):
        realm = next(i for i, r in enumerate(REALMS) if r.digest(fleet.oracle.seal) == facts.realm)
        for _ in range(3):
            found = process.lookup(Document(realm, facts.keys))
            results = process.load(Document(realm, facts.keys), facts.keys)
            owed = [is_owed(fleet, facts, key) for key in facts.keys]
            first_not_owed = (*owed, False).index(False)
            whole = all(good for good, is_due in zip(results, owed, strict=True) if is_due)
            if (found >= first_not_owed and whole) or not facts.live:
                break  # loaded, or swept meanwhile
            fleet.world.sleep(2.0)
        else:
            fleet.disk.violate(f"{facts.name.path} was promised and a fresh process misses it")
            return


def is_owed(fleet: Fleet, facts: PackFacts, key: bytes) -> bool:
    """Whether a promised pack's chunk must be found: it need not once another copy of it was
    dropped, which may have been the one chosen (alternates are left out on purpose)."""
    others = (fleet.oracle.packs[name] for name in fleet.oracle.by_key[key])
    return all(other.live for other in others if other is not facts)


__all__ = ["LAYOUT", "everyone_finds", "final", "fresh"]
