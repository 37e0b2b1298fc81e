"""The numeric audit: same weights elsewhere are close, everything else is not (I8)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sharedfs_backend.audit import AuditVerdict, _to_float, compare
from sharedfs_backend.layout import LayoutDescriptor
from tests.inprocess.random_llama import (
    HEAD,
    KV_HEADS,
    LAYERS,
    Floats,
    bfloat16,
    bfloat16_bits,
    bfloat16_other_order,
    forward,
    weights,
)

TOKENS = 128
SHAPE = (2, LAYERS, TOKENS, KV_HEADS * HEAD)
MODEL = weights(0)
EXACT = forward(MODEL, TOKENS)
OURS = forward(MODEL, TOKENS, bfloat16)
OTHER_HARDWARE = forward(MODEL, TOKENS, bfloat16_other_order)
STRANGER = forward(weights(1), TOKENS)
TUNED = forward(MODEL.perturbed(0.2, seed=3), TOKENS)


def layout(dtype: str, shape: tuple[int, ...] = SHAPE, form: str = "KV_2LTD") -> LayoutDescriptor:
    return LayoutDescriptor((dtype,), (shape,), form, TOKENS)


def fp8_e4m3(values: Floats) -> bytes:
    return _nearest(values, "float8_e4m3fn")


def fp8_e5m2(values: Floats) -> bytes:
    return _nearest(values, "float8_e5m2")


def _nearest(values: Floats, dtype: str) -> bytes:
    torch = pytest.importorskip("torch")
    return bytes(torch.tensor(values).to(getattr(torch, dtype)).view(torch.uint8).numpy())


ENCODERS: dict[str, Callable[[Floats], bytes]] = {
    "bfloat16": lambda values: bfloat16_bits(values).tobytes(),
    "float16": lambda values: values.astype(np.float16).tobytes(),
    "float32": lambda values: np.ascontiguousarray(values).tobytes(),
    "float8_e4m3fn": fp8_e4m3,
    "float8_e5m2": fp8_e5m2,
}


@pytest.fixture(params=list(ENCODERS))
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def verdict(stored: Floats, own: Floats, dtype: str, form: str = "KV_2LTD") -> AuditVerdict:
    encode = ENCODERS[dtype]
    return compare(encode(stored), encode(own), layout(dtype, stored.shape, form)).verdict


def test_bits_become_the_numbers_they_stand_for(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    data = ENCODERS[dtype](OURS[0, 0])
    expected = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).float().numpy()
    bits = np.frombuffer(data, {1: "u1", 2: "<u2", 4: "<f4"}[len(data) // expected.size])
    bits = bits.view("<f2") if dtype == "float16" else bits
    assert np.array_equal(_to_float(bits, dtype), expected)


def test_equal_bytes_are_the_same(dtype: str) -> None:
    assert verdict(OURS, OURS, dtype) is AuditVerdict.SAME


def test_the_same_weights_on_other_hardware_are_close(dtype: str) -> None:
    assert verdict(OTHER_HARDWARE, OURS, dtype) is AuditVerdict.CLOSE


def test_a_float32_pass_and_a_bfloat16_pass_are_close() -> None:
    assert verdict(EXACT, OURS, "float32") is AuditVerdict.CLOSE


def test_other_weights_are_unrelated(dtype: str) -> None:
    assert verdict(STRANGER, OURS, dtype) is AuditVerdict.UNRELATED


def test_a_strong_fine_tune_of_the_same_base_is_unrelated(dtype: str) -> None:
    assert verdict(TUNED, OURS, dtype) is AuditVerdict.UNRELATED


def test_a_faint_fine_tune_is_never_called_the_same() -> None:
    tuned = forward(MODEL.perturbed(0.05, seed=3), TOKENS)
    assert verdict(tuned, OURS, "bfloat16") is AuditVerdict.INCONCLUSIVE


def test_another_ranks_heads_are_unrelated(dtype: str) -> None:
    half = KV_HEADS * HEAD // 2
    first, second = EXACT[..., :half].copy(), EXACT[..., half:].copy()
    assert verdict(first, second, dtype) is AuditVerdict.UNRELATED


def test_two_swapped_layers_of_many_are_unrelated() -> None:
    swapped = EXACT.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert verdict(swapped, OURS, "bfloat16") is AuditVerdict.UNRELATED


def test_keys_in_the_place_of_values_are_unrelated() -> None:
    assert verdict(EXACT[::-1].copy(), OURS, "bfloat16") is AuditVerdict.UNRELATED


def test_another_tensor_order_is_unrelated() -> None:
    token_major = np.ascontiguousarray(EXACT.transpose(2, 0, 1, 3)).reshape(SHAPE)
    assert verdict(token_major, OURS, "bfloat16") is AuditVerdict.UNRELATED


def test_channel_offsets_do_not_make_strangers_look_related() -> None:
    offsets = np.random.default_rng(0).normal(0, 50, SHAPE[-1]).astype(np.float32)
    stranger = STRANGER + offsets
    assert verdict(stranger, EXACT + offsets, "float32") is AuditVerdict.UNRELATED


@pytest.mark.parametrize("form", ["KV_T2D", "KV_2TD"])
def test_one_layers_tensors_are_judged_in_either_order(form: str) -> None:
    axes = (1, 0, 2) if form == "KV_T2D" else (0, 1, 2)
    theirs, ours, other = (
        np.ascontiguousarray(whole[:, 3].transpose(axes))
        for whole in (OTHER_HARDWARE, OURS, STRANGER)
    )
    assert verdict(theirs, ours, "bfloat16", form) is AuditVerdict.CLOSE
    encode = ENCODERS["bfloat16"]
    assert compare(encode(theirs), encode(ours), layout("bfloat16", ours.shape, form)).slabs == 2
    assert verdict(other, ours, "bfloat16", form) is AuditVerdict.UNRELATED


def test_several_tensors_of_several_types_are_judged_together() -> None:
    both = LayoutDescriptor(("bfloat16", "float32"), (SHAPE, SHAPE), "KV_2LTD", TOKENS)

    def pack(first: Floats, second: Floats) -> bytes:
        return ENCODERS["bfloat16"](first) + ENCODERS["float32"](second)

    close = compare(pack(OTHER_HARDWARE, OTHER_HARDWARE), pack(OURS, OURS), both)
    half_wrong = compare(pack(OTHER_HARDWARE, STRANGER), pack(OURS, OURS), both)
    assert close.verdict is AuditVerdict.CLOSE
    assert half_wrong.verdict is AuditVerdict.UNRELATED


def test_opaque_bytes_are_equal_or_prove_nothing() -> None:
    ours, theirs = b"\x01" * 4096, b"\x02" * 4096
    opaque = layout("uint8", (4096,))
    assert compare(ours, ours, opaque).verdict is AuditVerdict.SAME
    assert compare(theirs, ours, opaque).verdict is AuditVerdict.INCONCLUSIVE


def test_other_sizes_prove_nothing() -> None:
    report = compare(b"\0" * 8, ENCODERS["bfloat16"](OURS), layout("bfloat16"))
    assert report.verdict is AuditVerdict.INCONCLUSIVE


def test_bytes_that_do_not_follow_the_layout_prove_nothing() -> None:
    wrong = layout("bfloat16", (2, LAYERS, TOKENS, 7))
    data, other = ENCODERS["bfloat16"](OURS), ENCODERS["bfloat16"](EXACT + 1)
    assert compare(data, other, wrong).verdict is AuditVerdict.INCONCLUSIVE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_damage_in_their_copy_is_unrelated_and_in_ours_proves_nothing(bad: float) -> None:
    damaged = np.full(SHAPE, bad, np.float32)
    assert verdict(damaged, OURS, "bfloat16") is AuditVerdict.UNRELATED
    assert verdict(OURS, damaged, "bfloat16") is AuditVerdict.INCONCLUSIVE


def test_one_stray_nan_does_not_change_the_verdict() -> None:
    stray = OTHER_HARDWARE.copy()
    stray[0, 0, 0, 0] = np.nan
    assert verdict(stray, OURS, "float32") is AuditVerdict.CLOSE


def test_constant_data_proves_nothing() -> None:
    ones, twos = np.ones(SHAPE, np.float32), np.full(SHAPE, 2, np.float32)
    assert verdict(ones, twos, "bfloat16") is AuditVerdict.INCONCLUSIVE
    assert verdict(ones, ones, "bfloat16") is AuditVerdict.SAME


def test_zeros_where_we_have_numbers_are_unrelated() -> None:
    assert verdict(np.zeros(SHAPE, np.float32), OURS, "bfloat16") is AuditVerdict.UNRELATED


def test_the_work_is_bounded_however_many_layers_there_are() -> None:
    shape = (2, 4000, 64, 8)
    random = np.random.default_rng(0)
    ours = random.normal(0, 1, shape).astype(np.float32)
    theirs = (ours * (1 + random.normal(0, 1e-3, shape))).astype(np.float32)
    report = compare(theirs.tobytes(), ours.tobytes(), layout("float32", shape))
    assert report.verdict is AuditVerdict.CLOSE
    assert report.slabs <= 512


def test_a_report_prints_its_numbers() -> None:
    encode = ENCODERS["bfloat16"]
    report = compare(encode(STRANGER), encode(OURS), layout("bfloat16"))
    assert str(report).startswith("unrelated (correlation ")
    assert "100% of 12 slabs" in str(report)
