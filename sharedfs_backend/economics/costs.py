"""Costs: seconds to compute KV against seconds to load it. Formulas, shared with the router.

Prefill of u tokens at the end of a context of L, the other L - u being cached, takes
`c0 + c1*u + c2*u*(L - u/2)`: a fixed part, the dense layers (2 * parameters FLOP a token), and
attention (each computed token with all before it: u*(L-u) pairs with the cached part and u*u/2
among themselves; 4 * layers * heads * head_dim FLOP a pair). The FLOP counts are those of Kaplan et
al., "Scaling Laws for Neural Language Models" (2020), table 1, forward pass; causal attention has
half the pairs.

Loading s tokens takes `l + s*k/B`. It must not know stores, replicas or requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Prefill:
    """What computing costs."""

    fixed_seconds: float
    """c0"""
    token_seconds: float
    """c1"""
    pair_seconds: float
    """c2"""

    def seconds(self, computed: float, context: float) -> float:
        """GPU time to compute the last `computed` of `context` prompt tokens."""
        pairs = computed * (context - computed / 2)
        return self.fixed_seconds + self.token_seconds * computed + self.pair_seconds * pairs


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading costs."""

    latency_seconds: float
    """l"""
    bytes_per_second: float
    """B"""
    bytes_per_token: float
    """k"""

    def seconds(self, tokens: float) -> float:
        """From asking for `tokens` of KV until they are there; none take no time."""
        if tokens <= 0:
            return 0.0
        return self.latency_seconds + tokens * self.bytes_per_token / self.bytes_per_second


def prefill_of_hardware(
    parameters: float,
    layers: int,
    heads: int,
    head_dim: int,
    *,
    flops: float,
    efficiency: float = 0.5,
    fixed_seconds: float = 0.01,
) -> Prefill:
    """A first guess at a model's prefill cost on hardware of `flops` (all GPUs of the replica).

    `efficiency` is the share of the peak a prefill reaches; 0.4-0.6 is usual for long prompts.
    """
    rate = flops * efficiency
    pair_flop = 4.0 * layers * heads * head_dim
    return Prefill(fixed_seconds, 2.0 * parameters / rate, pair_flop / rate)


def break_even_bandwidth(prefill: Prefill, bytes_per_token: float, context: float = 0.0) -> float:
    """Bytes per second below which loading a token takes longer than computing it.

    k/c1 for short prompts. Attention makes later tokens dearer: the mean over a prefix of `context`
    tokens is c1 + c2*context/2.
    """
    return bytes_per_token / (prefill.token_seconds + prefill.pair_seconds * context / 2)


def saved_seconds(prefill: Prefill, tokens: float, context: float, held: float = 0.0) -> float:
    """GPU time that having `tokens` more of the prefix saves, where `held` are cached anyway."""
    left = context - held
    return prefill.seconds(left, context) - prefill.seconds(left - tokens, context)


def is_worth_loading(
    prefill: Prefill, loading: Loading, tokens: float, context: float, held: float = 0.0
) -> bool:
    """Whether loading the next `tokens` after `held` is quicker than computing them."""
    return tokens > 0 and loading.seconds(tokens) < saved_seconds(prefill, tokens, context, held)


def load_or_recompute(prefill: Prefill, loading: Loading, context: float, held: float = 0.0) -> int:
    """The least number of tokens, after `held`, that is worth loading; -1 if none is.

    The saving grows with the number of tokens loaded but loading pays its latency once, so below
    this number computing is quicker. The largest possible is `context - held - 1`: the last token
    is always computed.
    """
    high = int(context - held) - 1
    if high < 1 or not is_worth_loading(prefill, loading, high, context, held):
        return -1
    low = 0  # never worth it; high always is: loading - saving is convex and starts positive
    while high - low > 1:
        middle = (low + high) // 2
        if is_worth_loading(prefill, loading, middle, context, held):
            high = middle
        else:
            low = middle
    return high


def break_even_hit_rate(cost_seconds: float, gain_seconds: float) -> float:
    """p*: the share of requests that must find their prefix for storing it to pay.

    p * gain > (1 - p) * cost, so p* = cost / (cost + gain). 1 where a hit gains nothing.
    """
    if gain_seconds <= 0:
        return 1.0
    return cost_seconds / (cost_seconds + gain_seconds)


def fit(samples: Sequence[tuple[float, float, float]]) -> Prefill:
    """The costs that explain (computed tokens, context tokens, seconds) best.

    Least squares of the relative error, with no cost below zero (Lawson and Hanson's active set:
    the most negative is held at zero and the rest is solved again). Needs three distinct samples.
    """
    if len({(computed, context) for computed, context, _ in samples}) < 3:
        raise ValueError("a fit of three costs needs at least three different samples")
    table = np.array(samples, dtype=np.float64)
    computed, context, seconds = table.T
    if not np.isfinite(table).all() or (seconds <= 0).any():
        raise ValueError("samples must be finite and take time")
    shape = np.stack([np.ones_like(computed), computed, computed * (context - computed / 2)], 1)
    weighted = shape / seconds[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    free = [index for index in range(3) if scale[index] > 0]
    costs = np.zeros(3)
    while free:
        found = np.linalg.lstsq(weighted[:, free] / scale[free], np.ones(len(table)), rcond=None)[0]
        costs[:] = 0.0
        costs[free] = found / scale[free]
        least = int(np.argmin(costs))
        if costs[least] >= 0 or math.isclose(costs[least], 0.0, abs_tol=0.0):
            break
        free.remove(least)
    return Prefill(*(float(cost) for cost in costs))
