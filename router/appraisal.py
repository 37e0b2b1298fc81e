"""Appraisal: one request's estimates on all replicas, from what the fleet keeps. Decisions only.

It joins shadow, load and learned costs, and changes nothing but that a probe is noted. It must not
know policies or tickets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.asks import Ask
from router.constants import Constants
from router.estimate import Estimate, Held, Pressure, estimate, estimated
from router.replica import PROBE_TOKENS_MAX, PROBE_TOKENS_MIN, Replica
from router.shadow import Holder


def appraise(
    ask: Ask,
    replicas: Sequence[Replica],
    depths: Mapping[Holder, int],
    shared_tokens: float,
    common_tokens: float,
    now: float,
    constants: Constants,
    answer_s: float,
) -> list[Estimate]:
    """One estimate for each replica, in their order."""
    prompt, size, found = max(1, ask.prompt_tokens), ask.block_tokens, []
    for each in replicas:
        gpu = host = 0
        if depths:
            gpu, host = depths.get(each.gpu, 0), depths.get(each.host, 0)
        if each.exact is not None:
            gpu = each.exact_depth(ask.blocks)
        trust, speed = size * each.trust.value, each.speed
        beyond = (host - gpu) * trust if host > gpu else 0.0
        queue_s, pending, io_wait_s, decodes, kv_usage, busy = each.load.figures(now)
        found.append(
            estimated(
                prompt, gpu * trust, beyond, shared_tokens, common_tokens,
                queue_s, pending, io_wait_s, decodes, kv_usage, busy, answer_s,
                speed.fixed_s, speed.token_s, speed.pair_s, speed.loading, constants,
            )
        )  # fmt: skip
    return found


def probe(chosen: Replica, costs: Estimate, now: float, ungated: Constants) -> Estimate:
    """The estimate with the load that the gate has spared, if that is a small one."""
    if not PROBE_TOKENS_MIN <= costs.spared_tokens <= PROBE_TOKENS_MAX:
        return costs
    chosen.probes(now)
    shared = costs.gpu_tokens + costs.host_tokens + costs.spared_tokens
    held = Held(costs.prompt_tokens, costs.gpu_tokens, costs.host_tokens, shared)
    pressure = Pressure(0.0, 0, 0.0, chosen.load.decodes(now), chosen.load.kv_usage)
    return estimate(held, pressure, chosen.speed.prefill, chosen.speed.loading, ungated)
