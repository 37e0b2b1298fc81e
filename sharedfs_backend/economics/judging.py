"""Judging: a measured tier against a model: does it pay, from which length, and why not. Pure.

A reload of b bytes in packs takes `rounds of opens * open + first read + b / bandwidth`: opens and
reads go in parallel as far as the mount was seen to overlap operations. Everything is compared with
the prefill it saves. The requirement is stated operation latency first: that is what decides on
network mounts; bandwidth comes second.

It must not know files, clocks or how a tier was measured.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sharedfs_backend.economics.costs import Prefill, break_even_hit_rate, saved_seconds
from sharedfs_backend.economics.models import kv_bytes_per_token, tokens_max

MIB = 1 << 20
CHUNK_TOKENS = 256
REFERENCE_TOKENS = 4096
"""The length the verdict is about: a system prompt with a document or a few turns."""
WORTH = 0.5
"""A reload that takes more than this share of the computing time is not worth a shared tier: the
rest of the gain is lost to waiting behind other loads."""
PACK_BYTES = tuple(size * MIB for size in (64, 128, 256))
"""What may be chosen; smaller packs mean finer eviction, larger ones fewer opens."""
OPEN_SHARE = 0.05
"""Packs are large enough when opening them takes at most this share of a long reload."""
NO_MATTER_SHARE = 0.01
LONG_TOKENS = 32_768
MEMORY_SECONDS = 50e-6
"""Operations quicker than this were answered by this machine's own caches."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What probing a mount found. Seconds of one operation alone, medians; bytes per second."""

    stat_seconds: float
    open_seconds: float
    read_seconds: float
    """Of 4 KiB from a file just opened."""
    create_seconds: float
    """Create, write 4 KiB, close."""
    overlap: float
    """Operations the mount works on at the same time, as far as was seen."""
    workers: int
    """Threads that were tried with."""
    read_bytes_per_second: float
    """Pieces of 4 MiB, as many in flight as serve best."""
    single_bytes_per_second: float
    """One piece at a time."""
    write_bytes_per_second: float
    """Several files at the same time."""
    is_cached: bool = False
    """Pages could not be dropped before they were read: bandwidth is that of memory."""
    is_latency_bound: bool = False
    """It is latency that limits the bandwidth, which would grow as that falls."""
    file_system: str = ""

    @property
    def operation_seconds(self) -> float:
        """What one operation costs on the request path."""
        return max(self.open_seconds, self.read_seconds)

    def reload_seconds(self, size: float, pack_bytes: float) -> float:
        """From asking for `size` bytes in packs until they are there."""
        if size <= 0:
            return 0.0
        packs = max(1, -(-int(size) // int(pack_bytes)))
        rounds = -(-packs // max(1, int(self.overlap)))
        return rounds * self.open_seconds + self.read_seconds + size / self.read_bytes_per_second


class Answer(enum.Enum):
    """Whether this tier can pay for this model."""

    YES = "yes"
    BARELY = "barely"
    LONG_ONLY = "only for long prefixes"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer with its numbers; lengths in tokens, -1 for never."""

    answer: Answer
    kv_bytes_per_token: int
    break_even_tokens: int
    """From here on a reload is quicker than computing."""
    worth_tokens: int
    """From here on it takes at most half as long."""
    pack_bytes: int
    reference_tokens: int
    compute_seconds: float
    reload_seconds: float
    latency_seconds: float
    """The part of the reload that is operations."""
    transfer_seconds: float
    """The part that is bytes."""
    operation_seconds_max: float
    """Operation latency up to which the reference length is worth it at this bandwidth; negative:
    bytes alone take too long."""
    bytes_per_second_min: float
    """Bandwidth from which it is worth it at this latency; infinite: operations alone take too
    long."""
    break_even_hit_rate: float
    """If nothing of writing were hidden behind computing."""

    @property
    def gain_seconds(self) -> float:
        return self.compute_seconds - self.reload_seconds


def judge(
    tier: Tier, config: Mapping[str, object], prefill: Prefill, dtype_bytes: int = 2
) -> Verdict:
    """ValueError where the config lacks what is needed."""
    per_token = kv_bytes_per_token(config, dtype_bytes)
    if not per_token:
        raise ValueError("the model's config describes no layer that keeps KV")
    longest = tokens_max(config)
    reference = min(REFERENCE_TOKENS, longest)
    pack_bytes = pack_size(tier, min(LONG_TOKENS, longest) * per_token)

    def reload(tokens: float) -> float:
        return tier.reload_seconds(tokens * per_token, pack_bytes)

    def least(share: float) -> int:
        """The least length from which reloads take at most this share, up to the longest."""
        found = -1
        for tokens in range(longest // CHUNK_TOKENS * CHUNK_TOKENS, 0, -CHUNK_TOKENS):
            if reload(tokens) >= share * saved_seconds(prefill, tokens, tokens):
                break
            found = tokens
        return found

    worth, break_even = least(WORTH), least(1.0)
    size = reference * per_token
    compute, took = saved_seconds(prefill, reference, reference), reload(reference)
    transfer = size / tier.read_bytes_per_second
    budget = WORTH * compute
    operations = (took - transfer) / tier.operation_seconds
    left = budget - (took - transfer)
    answer = Answer.NO
    if worth >= 0:
        answer = Answer.YES if worth <= reference else Answer.LONG_ONLY
    elif break_even >= 0:
        answer = Answer.LONG_ONLY
    if answer is Answer.LONG_ONLY and break_even <= reference:
        answer = Answer.BARELY
    return Verdict(
        answer=answer,
        kv_bytes_per_token=per_token,
        break_even_tokens=break_even,
        worth_tokens=worth,
        pack_bytes=pack_bytes,
        reference_tokens=reference,
        compute_seconds=compute,
        reload_seconds=took,
        latency_seconds=took - transfer,
        transfer_seconds=transfer,
        operation_seconds_max=(
            tier.operation_seconds * budget / took
            if tier.is_latency_bound
            else (budget - transfer) / operations
        ),
        bytes_per_second_min=size / left if left > 0 else float("inf"),
        break_even_hit_rate=break_even_hit_rate(size / tier.write_bytes_per_second, compute - took),
    )


def pack_size(tier: Tier, size: float) -> int:
    """The smallest pack of which opening all that a reload of `size` bytes needs is no matter."""
    for pack_bytes in PACK_BYTES:
        took = tier.reload_seconds(size, pack_bytes)
        opens = took - tier.read_seconds - size / tier.read_bytes_per_second
        if opens <= OPEN_SHARE * took:
            return pack_bytes
    return PACK_BYTES[-1]


def in_words(tier: Tier, verdict: Verdict) -> list[str]:
    """Sentences for whoever has to decide, the answer first."""
    lengths = f"{verdict.reference_tokens:,} tokens"
    said = [_answer(verdict)]
    said.append(
        f"Computing a prefix of {lengths} takes {_time(verdict.compute_seconds)}; reloading its "
        f"{_size(verdict.reference_tokens * verdict.kv_bytes_per_token)} takes "
        f"{_time(verdict.reload_seconds)}: {_time(verdict.latency_seconds)} of operations and "
        f"{_time(verdict.transfer_seconds)} of bytes."
    )
    said.append(_latency(tier, verdict))
    said.append(_bandwidth(tier, verdict))
    said.append(_packs(tier, verdict))
    if verdict.gain_seconds > 0:
        said.append(
            f"Storing pays if at least {verdict.break_even_hit_rate:.1%} of such prefixes are "
            "asked for again, even if no write were hidden behind computing."
        )
    if tier.operation_seconds < MEMORY_SECONDS or tier.is_cached:
        said.append(
            "Caution: this machine's own caches answered "
            + ("some reads" if tier.is_cached else "the operations")
            + "; another machine will find the mount slower than this. Probe from a second one, "
            "or on the throttled mount of the benchmarks."
        )
    return said


def _answer(verdict: Verdict) -> str:
    worth, even = verdict.worth_tokens, verdict.break_even_tokens
    if verdict.answer is Answer.YES:
        return (
            f"Yes: from {even:,} tokens on a reload is quicker than computing, from {worth:,} on "
            "at least twice as quick."
        )
    if verdict.answer is not Answer.NO:
        head = "Barely" if verdict.answer is Answer.BARELY else "Only for long prefixes"
        after = f"twice as quick from {worth:,} on" if worth >= 0 else "never twice as quick"
        return (
            f"{head}: from {even:,} tokens on a reload is quicker than computing, but it is "
            f"{after}; waiting behind other loads can eat a smaller gain."
        )
    return "No: computing is quicker at every length this model takes. Do without a shared tier."


def _latency(tier: Tier, verdict: Verdict) -> str:
    here = f"Operation latency: {_time(tier.operation_seconds)} here"
    most = verdict.operation_seconds_max
    if most <= 0:
        return f"{here}. No latency would be low enough: the bytes alone take too long."
    state = "enough" if tier.operation_seconds <= most else "too slow"
    bandwidth = "" if tier.is_latency_bound else " at this bandwidth"
    return f"{here}; to be twice as quick, at most {_time(most)}{bandwidth}: {state}."


def _bandwidth(tier: Tier, verdict: Verdict) -> str:
    here = f"Bandwidth: {_rate(tier.read_bytes_per_second)} here"
    if tier.is_latency_bound:
        here += ", and latency is what limits it"
    least = verdict.bytes_per_second_min
    if least == float("inf"):
        return f"{here}. None would be high enough: the operations alone take too long."
    state = "enough" if tier.read_bytes_per_second >= least else "too slow"
    return f"{here}; to be twice as quick, at least {_rate(least)} at this latency: {state}."


def _packs(tier: Tier, verdict: Verdict) -> str:
    packs = f"Packs: {verdict.pack_bytes // MIB} MiB"
    if verdict.latency_seconds < NO_MATTER_SHARE * verdict.reload_seconds:
        return f"{packs}; operations are too quick here for the size to matter."
    seen = f"about {tier.overlap:.0f} operations at the same time ({tier.workers} threads tried)"
    if tier.overlap >= 4:
        return f"{packs}. The mount works on {seen}: opens and reads overlap."
    return f"{packs}. The mount works on {seen}: opens hardly overlap, few large packs serve best."


def _time(seconds: float) -> str:
    if seconds < 0.1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.1:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(per_second: float) -> str:
    if per_second < 1e8:
        return f"{per_second / 1e6:.1f} MB/s"
    return f"{per_second / 1e9:.2f} GB/s"


def _size(size: float) -> str:
    return f"{size / MIB:,.0f} MiB" if size < 4096 * MIB else f"{size / 1024 / MIB:,.1f} GiB"
