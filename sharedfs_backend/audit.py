"""Do two copies of one chunk's KV come from the same weights? Numbers in, a verdict out.

Keys cannot tell everything: two ranks may be given one key, other weights one name. A process that
holds its own KV for a chunk that another process published compares the two here. The same weights
on other hardware differ in the last bits; other weights, ranks or layouts do not correlate, and a
fine-tune of the same base correlates but differs by far more than rounding does.

Pure: numpy only, no torch, no files, no clock. Work is bounded (about `SAMPLE_ELEMENTS_MAX`
elements whatever the chunk's size) and any bytes give a verdict, never an exception. What is done
about a verdict is decided elsewhere. Serves I8.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedfs_backend.layout import LayoutDescriptor

Buffer = bytes | bytearray | memoryview
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.generic]

SAMPLE_ELEMENTS_MAX = 64 * 1024
"""Elements looked at per chunk. A few hundred would tell strangers apart; this many also give
every layer of a 100-layer model enough of them, for well under a millisecond per layer."""

SLAB_ELEMENTS_MIN = 256
"""Elements per slab (one of K or V of one layer): the error of a correlation over n elements is
about 1/sqrt(n), 6 % here, far from both thresholds."""

CLOSE_ERROR_MAX = 0.10
"""Largest relative error of a slab called close. bfloat16 rounds by 0.4 %, and two passes in
bfloat16 drift apart by 1 to 4 % over some tens of layers; fp8 adds its own rounding, 4 to 7 % of a
value that falls on the other side of a boundary. A fine-tune nearer than this is not seen."""

UNRELATED_ERROR_MIN = 0.25
"""Smallest relative error of a slab called unrelated. Independent data of equal scale has 1.41, a
swapped layer 1.4, weights perturbed by a fifth about 0.3. Between the two the slab is undecided."""

UNRELATED_SLABS_MIN = 0.10
"""Share of unrelated slabs that makes the chunk unrelated: one odd layer is noise, a tenth is not.
The first layers of a fine-tune look alike; the audit must not need all of them to differ."""

NONFINITE_SHARE_MAX = 0.01
"""More NaN or infinity than this in one's own copy, and it proves nothing about the other."""


class AuditVerdict(enum.Enum):
    SAME = "same"  # every sampled element is equal bit by bit
    CLOSE = "close"  # the same weights, computed elsewhere
    UNRELATED = "unrelated"  # other weights, rank, layer order or layout, or damage
    INCONCLUSIVE = "inconclusive"  # opaque bytes, no variation, or between the thresholds


@dataclass(frozen=True, slots=True)
class AuditReport:
    """A verdict with the numbers behind it (medians over the slabs; NaN where none counted)."""

    verdict: AuditVerdict
    correlation: float
    relative_error: float
    unrelated_share: float
    slabs: int
    reason: str = ""

    def __str__(self) -> str:
        return (
            f"{self.verdict.value} (correlation {self.correlation:.3f}, relative error "
            f"{self.relative_error:.3f}, {self.unrelated_share:.0%} of {self.slabs} slabs unrelated"
            f"{', ' + self.reason if self.reason else ''})"
        )


def compare(stored: Buffer, own: Buffer, layout: LayoutDescriptor) -> AuditReport:
    """Compare one chunk's stored bytes with this process's own KV for the same tokens.

    Both buffers hold the chunk's tensors one after the other as `layout` says (shapes in elements,
    native little-endian). Thread-safe; about a millisecond.
    """
    theirs, ours = np.frombuffer(stored, np.uint8), np.frombuffer(own, np.uint8)
    if theirs.size != ours.size:
        return _undecided(f"{theirs.size} bytes stored, {ours.size} of our own")
    samples = _sample(theirs, ours, layout)
    if samples is None:
        same = bool(np.array_equal(theirs, ours))
        return _same(0) if same else _undecided("bytes of unknown meaning")
    if all(np.array_equal(pair.stored, pair.own) for pair in samples):
        return _same(len(samples))
    return _judge(samples)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same sampled bits of one slab from both copies, shape (tokens, channels)."""

    stored: Bits
    own: Bits
    dtype: str


def _same(slabs: int) -> AuditReport:
    return AuditReport(AuditVerdict.SAME, 1.0, 0.0, 0.0, slabs)


def _undecided(reason: str, slabs: int = 0) -> AuditReport:
    return AuditReport(AuditVerdict.INCONCLUSIVE, math.nan, math.nan, 0.0, slabs, reason)


# Bytes to samples


def token_axis(tensor_format: str, dimensions: int) -> int:
    """The axis that counts tokens; `tensor_format` is the name of LMCache's MemoryFormat."""
    if tensor_format == "KV_T2D" or dimensions <= 2:
        return 0
    return dimensions - 2


def _sample(
    theirs: npt.NDArray[np.uint8], ours: npt.NDArray[np.uint8], layout: LayoutDescriptor
) -> list[_Pair] | None:
    """Sampled pairs for every slab, or None where the bytes do not follow the layout."""
    tensors: list[tuple[str, Bits, Bits]] = []
    offset = 0
    for dtype, shape in zip(layout.dtypes, layout.shapes, strict=False):
        bits = _BITS.get(dtype)
        count = math.prod(shape)
        if bits is None or not shape or count <= 0:
            return None
        end = offset + count * bits.itemsize
        if end > theirs.size:
            return None
        axis = token_axis(layout.tensor_format, len(shape))
        stored = _slabs(theirs[offset:end].view(bits), shape, axis)
        own = _slabs(ours[offset:end].view(bits), shape, axis)
        tensors.append((dtype, stored, own))
        offset = end
    if not tensors or offset != theirs.size:
        return None
    slabs_total = sum(slabs.shape[0] for _, slabs, _ in tensors)
    budget = max(SLAB_ELEMENTS_MIN, SAMPLE_ELEMENTS_MAX // slabs_total)
    slab_step = max(1, slabs_total * budget // SAMPLE_ELEMENTS_MAX)
    pairs = []
    for dtype, stored, own in tensors:
        rows, columns = _spread(stored.shape[1], stored.shape[2], budget)
        for slab in range(0, stored.shape[0], slab_step):
            grid = np.ix_(rows, columns)
            pairs.append(_Pair(stored[slab][grid], own[slab][grid], dtype))
    return pairs


def _slabs(flat: Bits, shape: tuple[int, ...], axis: int) -> Bits:
    """View as (slabs, tokens, channels): one slab for each K or V of each layer."""
    tensor = flat.reshape(shape)
    if tensor.ndim == 1:
        return tensor.reshape(1, -1, 1)
    if axis == 0:  # (tokens, ..., channels)
        moved = tensor.reshape(shape[0], -1, shape[-1])
        return moved.transpose(1, 0, 2)
    return tensor.reshape(-1, shape[-2], shape[-1])


def _spread(
    tokens: int, channels: int, budget: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and columns of a grid of about `budget` elements over all tokens and all heads."""
    rows = min(tokens, max(1, math.isqrt(budget)))
    columns = min(channels, max(1, budget // rows))
    rows = min(tokens, max(1, budget // columns))
    return (
        np.linspace(0, tokens - 1, rows).astype(np.intp),
        np.linspace(0, channels - 1, columns).astype(np.intp),
    )


# Samples to a verdict


def _judge(samples: list[_Pair]) -> AuditReport:
    errors, correlations, unrelated, undecided = [], [], 0, 0
    for pair in samples:
        measured = _measure(_to_float(pair.stored, pair.dtype), _to_float(pair.own, pair.dtype))
        if measured is None:
            continue
        error, correlation = measured
        errors.append(error)
        correlations.append(correlation)
        unrelated += error >= UNRELATED_ERROR_MIN
        undecided += CLOSE_ERROR_MAX < error < UNRELATED_ERROR_MIN
    if not errors:
        return _undecided("no variation, or no finite numbers of our own", len(samples))
    share = unrelated / len(errors)
    if share >= UNRELATED_SLABS_MIN:
        verdict = AuditVerdict.UNRELATED
    elif unrelated + undecided > UNRELATED_SLABS_MIN * len(errors):
        verdict = AuditVerdict.INCONCLUSIVE
    else:
        verdict = AuditVerdict.CLOSE
    return AuditReport(
        verdict, float(np.median(correlations)), float(np.median(errors)), share, len(errors)
    )


def _measure(stored: Floats, own: Floats) -> tuple[float, float] | None:
    """(relative error, correlation) of one slab, or None where our own copy cannot judge.

    Each channel's mean over the tokens is removed first: keys carry large per-channel offsets that
    would make strangers look related. The error is relative to the geometric mean of both norms.
    """
    ours_finite = np.isfinite(own)
    if 1.0 - ours_finite.mean() > NONFINITE_SHARE_MAX:
        return None
    bad = ours_finite & ~np.isfinite(stored)
    if bad.mean() > NONFINITE_SHARE_MAX:
        return 2.0, 0.0  # theirs is damage where ours is a number
    usable = ours_finite & np.isfinite(stored)
    left = np.where(usable, stored, 0.0).astype(np.float64)
    right = np.where(usable, own, 0.0).astype(np.float64)
    if left.shape[0] > 1:
        left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    norm_left, norm_right = np.linalg.norm(left), np.linalg.norm(right)
    floor = 1e-6 * max(float(np.abs(own[ours_finite]).max(initial=0.0)), 1e-30)
    if norm_right <= floor * math.sqrt(own.size):
        return None  # our own copy does not vary
    if norm_left <= floor * math.sqrt(own.size):
        return 2.0, 0.0
    difference = np.linalg.norm(left - right)
    return (
        float(difference / math.sqrt(norm_left * norm_right)),
        float((left * right).sum() / (norm_left * norm_right)),
    )


# Element types: how many bits, and what number they mean


def _fp8_table(exponent_bits: int, mantissa_bits: int, *, has_infinity: bool) -> Floats:
    """The 256 values of an 8-bit float (OCP e4m3 has no infinity and one NaN per sign)."""
    bias = (1 << (exponent_bits - 1)) - 1
    top, fraction_top = (1 << exponent_bits) - 1, (1 << mantissa_bits) - 1
    values = []
    for code in range(256):
        exponent = (code >> mantissa_bits) & top
        fraction = code & fraction_top
        if exponent == top and (has_infinity or fraction == fraction_top):
            value = math.inf if has_infinity and fraction == 0 else math.nan
        elif exponent == 0:
            value = math.ldexp(fraction, 1 - bias - mantissa_bits)
        else:
            value = math.ldexp(fraction + fraction_top + 1, exponent - bias - mantissa_bits)
        values.append(-value if code & 0x80 else value)
    return np.array(values, np.float32)


_FP8 = {
    "float8_e4m3fn": _fp8_table(4, 3, has_infinity=False),
    "float8_e5m2": _fp8_table(5, 2, has_infinity=True),
}

_BITS: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float8_e4m3fn": np.dtype("u1"),
    "float8_e5m2": np.dtype("u1"),
}
"""Types with a numeric meaning. int8 and uint8 are packed or quantised in ways the layout does not
tell, so they are opaque: equal, or nothing is known."""


def _to_float(bits: Bits, dtype: str) -> Floats:
    if dtype in _FP8:
        return _FP8[dtype][bits.astype(np.uint8)]
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)
