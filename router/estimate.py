"""Estimate: time to first token of one request on one replica, in seconds. Pure.

    T_gpu = c0 + c1*u + c2*u*(L - u/2)
    T_io  = d*k/B_pcie + (s>0)*(wait for earlier loads + l + s*k/B_w)
    TTFT  = max(W, T_io) + slow*T_gpu            slow = 1 + g*decodes
    cost  = TTFT + theta*(1+n)*(slow*T_gpu + load) + chi*g*D*busy + phi*max(0, kv-0.9) - psi*retain

for a prompt of L tokens of which the replica holds h in its GPU and d more in host memory, the
shared tier s more, and u are computed; W is the prefill it has before it. Loading overlaps with
queueing; the shared part is used only where loading is quicker than computing. The cost is what
choices compare: what a request occupies others wait for, and as many come while it waits as are
there now (n). Its answer slows what is prefilled beside it: D is how long answers last, `busy` the
share of its time the replica prefills. So short prompts keep to where little is prefilled, and long
ones find a replica that generates little. A prefix that nearly every request has is not charged to
the one that brings it. What is made for every request has a written constructor: see `compiling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from router.constants import Constants
from sharedfs_backend.economics import Loading, Prefill

PRESSURE_FROM = 0.9
"""Share of the KV cache in use above which engines begin to preempt."""


class Held(NamedTuple):
    """Tokens of one prompt, and who has them. A prefix each, one after the other."""

    prompt: int
    """L"""
    gpu: float
    """h"""
    host: float
    """d, beyond h"""
    shared: float
    """S, from the prompt's start; most of it may be held locally too"""
    common: float = 0.0
    """What most recent requests share, from the prompt's start."""


@dataclass(init=False, slots=True, unsafe_hash=True)
class Pressure:
    """What a replica has to do besides."""

    queue_s: float
    """W"""
    pending: int
    """n"""
    io_wait_s: float
    decodes: int
    kv_usage: float
    busy: float
    """Share of its time it has been prefilling lately."""

    def __init__(
        self,
        queue_s: float,
        pending: int,
        io_wait_s: float,
        decodes: int,
        kv_usage: float,
        busy: float = 0.0,
    ) -> None:
        self.queue_s = queue_s
        self.pending = pending
        self.io_wait_s = io_wait_s
        self.decodes = decodes
        self.kv_usage = kv_usage
        self.busy = busy


@dataclass(init=False, slots=True, unsafe_hash=True)
class Estimate:
    """Seconds and tokens; `total_s` is the TTFT."""

    queue_s: float
    local_s: float
    shared_s: float
    compute_s: float
    total_s: float
    cost_s: float
    slow: float
    prompt_tokens: int
    gpu_tokens: float
    host_tokens: float
    shared_tokens: float
    """s: those that will be loaded."""
    computed_tokens: float
    """u"""
    load_s: float
    """l + s*k/B_w: the load alone."""
    spared_tokens: float
    """Those the shared tier has that computing gets sooner."""

    def __init__(
        self,
        queue_s: float,
        local_s: float,
        shared_s: float,
        compute_s: float,
        total_s: float,
        cost_s: float,
        slow: float,
        prompt_tokens: int,
        gpu_tokens: float,
        host_tokens: float,
        shared_tokens: float,
        computed_tokens: float,
        load_s: float,
        spared_tokens: float,
    ) -> None:
        self.queue_s = queue_s
        self.local_s = local_s
        self.shared_s = shared_s
        self.compute_s = compute_s
        self.total_s = total_s
        self.cost_s = cost_s
        self.slow = slow
        self.prompt_tokens = prompt_tokens
        self.gpu_tokens = gpu_tokens
        self.host_tokens = host_tokens
        self.shared_tokens = shared_tokens
        self.computed_tokens = computed_tokens
        self.load_s = load_s
        self.spared_tokens = spared_tokens


def estimate(
    held: Held,
    pressure: Pressure,
    prefill: Prefill,
    loading: Loading,
    constants: Constants,
    answer_s: float = 0.0,
) -> Estimate:
    """The estimate for one replica, with that replica's own learned costs. `answer_s` is D."""
    return estimated(
        *held, pressure.queue_s, pressure.pending, pressure.io_wait_s, pressure.decodes,
        pressure.kv_usage, pressure.busy, answer_s, prefill.fixed_seconds, prefill.token_seconds,
        prefill.pair_seconds, loading, constants,
    )  # fmt: skip


def estimated(
    prompt: int,
    gpu: float,
    host: float,
    shared_held: float,
    common: float,
    queue_s: float,
    pending: int,
    io_wait_s: float,
    decodes: int,
    kv_usage: float,
    busy: float,
    answer_s: float,
    fixed_s: float,
    token_s: float,
    pair_s: float,
    loading: Loading,
    constants: Constants,
) -> Estimate:
    """The same, for who has the fields of `Held`, `Pressure` and `Prefill` at hand: every request
    is appraised on every replica, so a prefill's seconds stand here as a sum."""
    most = prompt - 1.0  # the last token is always computed
    gpu = gpu if gpu < most else most
    host = host if host < most - gpu else most - gpu
    shared = (shared_held if shared_held < most else most) - gpu - host
    computed = prompt - gpu - host
    busy_s = fixed_s + token_s * computed + pair_s * (computed * (prompt - computed / 2))
    load_s = spared = shared_s = local_s = 0.0
    if shared > 0:
        rest_s = _seconds(fixed_s, token_s, pair_s, computed - shared, prompt)
        load_s = loading.seconds(shared)
        if load_s < busy_s - rest_s or not constants.is_load_gated:
            computed -= shared
            busy_s = rest_s
            shared_s = io_wait_s + load_s
        else:
            shared, spared, load_s = 0.0, shared, 0.0
    else:
        shared = 0.0
    if host:
        local_s = host * loading.bytes_per_token / constants.host_bytes_per_second
    slow = 1.0 + constants.decode_slowdown * decodes
    compute_s = slow * busy_s
    io_s = local_s + shared_s
    total_s = (io_s if io_s > queue_s else queue_s) + compute_s

    others = constants.throughput_weight * (1 + pending)
    cost_s = total_s + others * (compute_s + load_s)
    cost_s += constants.answer_weight * constants.decode_slowdown * answer_s * busy
    if kv_usage > PRESSURE_FROM:
        cost_s += constants.pressure_seconds * (kv_usage - PRESSURE_FROM)
    if gpu + host > 0 and constants.retain_weight:
        alone = gpu + host - (shared_held if shared_held > common else common)
        if alone > 0:
            saved = _seconds(fixed_s, token_s, pair_s, computed + alone, prompt) - busy_s
            cost_s -= constants.retain_weight * saved
    missing = common - (prompt - computed)
    if missing > 0:
        missing = min(missing, computed - 1.0)
        rest_s = _seconds(fixed_s, token_s, pair_s, computed - missing, prompt)
        saved = slow * (busy_s - rest_s)
        cost_s -= (1.0 + others) * saved
    return Estimate(
        queue_s, local_s, shared_s, compute_s, total_s, cost_s, slow,
        prompt, gpu, host, shared, computed, load_s, spared,
    )  # fmt: skip


def _seconds(
    fixed_s: float, token_s: float, pair_s: float, computed: float, context: float
) -> float:
    """`Prefill.seconds`."""
    return fixed_s + token_s * computed + pair_s * (computed * (context - computed / 2))
