"""Views: one replica as plain values, for the admin endpoints, metrics and the page. Pure.

It must not know what its readers make of it, and changes nothing.
"""

from __future__ import annotations

from router.outcome import ReplicaView
from router.replica import Replica


def view_of(each: Replica, now: float) -> ReplicaView:
    """The replica at this moment."""
    load, speed, trust = each.load, each.speed, each.trust
    return ReplicaView(
        replica=each.name,
        state=each.state,
        in_flight=load.ours(),
        pending=load.ours_pending(),
        pending_s=load.queue_s(now),
        decodes=load.decodes(now),
        fixed_s=speed.prefill.fixed_seconds,
        token_s=speed.prefill.token_seconds,
        pair_s=speed.prefill.pair_seconds,
        shared_bytes_per_s=speed.loading.bytes_per_second,
        shared_latency_s=speed.loading.latency_seconds,
        samples=speed.prefills,
        trust=trust.value,
        has_alarm=trust.has_alarm,
        shadow_blocks=each.gpu.used + each.host.used,
        kv_usage=load.kv_usage,
        has_exact_residency=each.exact is not None,
        external_hit_rate=each.external_hit_rate,
        predicted_tokens=trust.predicted,
        reported_tokens=trust.reported,
    )
