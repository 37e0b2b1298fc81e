"""The scenarios by name: each stresses one part of the protocol; together, all of it."""

from __future__ import annotations

from dataclasses import replace

from tests.protocol.scenario import Scenario
from tests.sim.chaos import Rates

FREEZES = (0.5, 150.0)  # from half a refresh to six leases
HANGS = (0.5, 60.0)

CALM = Scenario()
FREEZING = replace(CALM, rates=Rates(kill=0.001, freeze=0.003, freeze_seconds=FREEZES))
FAULTY = replace(
    CALM,
    rates=Rates(
        kill=0.0005,
        freeze=0.001,
        freeze_seconds=FREEZES,
        fail=0.02,
        hang=0.004,
        hang_seconds=HANGS,
        short_read=0.01,
    ),
)
CAPPED = replace(FREEZING, cap_bytes=4 << 20, documents=60, think_seconds=1.5)
CROWDED = replace(CAPPED, clients=8, cap_bytes=8 << 20, seconds=60.0)
RESTARTING = replace(
    CALM,
    seconds=180.0,
    think_seconds=8.0,
    restart_seconds=4.0,
    graceful_rate=0.2,
    rates=Rates(kill=0.003, freeze=0.001, freeze_seconds=FREEZES),
)
RETIRING = replace(
    CALM,
    seconds=150.0,
    documents=12,
    rates=Rates(
        kill=0.01,
        freeze=0.05,
        freeze_seconds=(10.0, 200.0),
        at=(("write", "journals/"), ("open", "journals/"), ("close", "journals/")),
    ),
)
SWEEPING = replace(
    CALM,
    seconds=70.0,
    cap_bytes=6 << 20,
    documents=150,
    think_seconds=0.5,
    graceful_rate=0.01,
    restart_seconds=1.0,
    rates=Rates(
        kill=0.01,
        hang=0.02,
        hang_seconds=(1.0, 12.0),
        at=(("unlink", "packs/"), ("write", "packs/"), ("write", "journals/")),
    ),
)
ORPHANING = replace(
    SWEEPING,
    seconds=45.0,
    rates=Rates(kill=0.06, at=(("close", "packs/"), ("write", "packs/"))),
)
SNAPPING = replace(
    SWEEPING,
    seconds=100.0,
    graceful_rate=0.1,
    rates=Rates(
        kill=0.02,
        freeze=0.3,
        freeze_seconds=(1.0, 11.0),
        at=(("create", "snapshots/"), ("write", "snapshots/"), ("unlink", "packs/")),
    ),
)
SLOW = replace(
    SWEEPING,
    think_seconds=0.2,
    rates=Rates(
        kill=0.004,
        hang=0.4,
        hang_seconds=(1.0, 4.5),
        at=(("write", "packs/"), ("create", "packs/")),
    ),
)
TEARING = replace(
    SNAPPING,
    cap_bytes=None,
    documents=12,
    think_seconds=2.0,
    rates=Rates(fail=0.3, at=(("write", "snapshots/"), ("close", "snapshots/"))),
)
PAUSING = replace(
    CALM,
    graceful_rate=0.1,
    restart_seconds=2.0,
    documents=40,
    think_seconds=1.0,
    rates=Rates(freeze=0.2, freeze_seconds=(2.0, 11.0), at=(("write", "journals/"),)),
)
STALLING = replace(
    SWEEPING,
    seconds=200.0,
    think_seconds=1.0,
    rates=Rates(freeze=0.05, freeze_seconds=(60.0, 150.0), at=(("write", "journals/"),)),
)
OVERDUE = replace(
    CALM,
    seconds=60.0,
    documents=40,
    think_seconds=1.0,
    rates=Rates(hang=0.3, hang_seconds=(4.0, 25.0), at=(("create", "packs/"),)),
)
FLOODING = replace(
    SWEEPING,
    clients=6,
    requests=8,
    seconds=25.0,
    documents=600,
    chunks_max=12,
    cap_bytes=16 << 20,
    think_seconds=0.05,
    graceful_rate=0.0,
    write_workers=40,
    rates=Rates(hang=1.0, hang_seconds=(3.0, 4.6), at=(("create", "packs/"),)),
)
INHERITING = replace(
    SWEEPING,
    seconds=40.0,
    leftover_bytes=5 << 20,
    rates=Rates(hang=0.05, hang_seconds=(0.2, 2.0), at=(("list", "packs/"),)),
)
LINGERING = replace(
    CALM,
    documents=150,
    think_seconds=0.5,
    restart_seconds=2.0,
    rates=Rates(
        kill=0.01, hang=0.9, hang_seconds=(3.0, 4.8), at=(("write", "packs/"), ("close", "packs/"))
    ),
)
FORGETTING = replace(CALM, journal_loss_rate=0.1, graceful_rate=0.0, documents=30, eager=False)
VANDALISED = replace(FREEZING, vandal_rate=0.2, cap_bytes=6 << 20, documents=30)

SCENARIOS: dict[str, Scenario] = {
    "calm": CALM,
    "freezing": FREEZING,
    "faulty": FAULTY,
    "capped": CAPPED,
    "crowded": CROWDED,
    "restarting": RESTARTING,
    "retiring": RETIRING,
    "sweeping": SWEEPING,
    "orphaning": ORPHANING,
    "snapping": SNAPPING,
    "slow": SLOW,
    "tearing": TEARING,
    "pausing": PAUSING,
    "stalling": STALLING,
    "overdue": OVERDUE,
    "flooding": FLOODING,
    "inheriting": INHERITING,
    "lingering": LINGERING,
    "forgetting": FORGETTING,
    "vandalised": VANDALISED,
}
