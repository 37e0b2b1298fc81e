"""A throttling file system: a FUSE pass-through whose latency, bandwidth and quirks can be set.

    with Throttle(Path("/data/real"), Path("/data/slow")) as slow:
        slow.set(latency_ms=1.0, bandwidth_mb_s=500.0)
        before = slow.counters()
        ...                                  # use /data/slow
        print(slow.counters() - before)

`make bench-tools` builds it. `python -m bench.throttle accuracy` measures how well it keeps what
it is asked. Must not know: what is stored on it, or by whom.
"""

from __future__ import annotations

from bench.throttle.available import ThrottleUnavailable, missing
from bench.throttle.control import CLASSES, Control, Counters
from bench.throttle.mount import Throttle
from bench.throttle.quirks import Quirks, named

__all__ = [
    "CLASSES",
    "Control",
    "Counters",
    "Quirks",
    "Throttle",
    "ThrottleUnavailable",
    "missing",
    "named",
]
