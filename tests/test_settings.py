"""Settings: what is accepted, what is refused, and that a refusal says what to do."""

from __future__ import annotations

import dataclasses

import pytest

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.settings import GIB, Settings


def refusal(**mapping: object) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_mapping({"root": "/mnt/kv"} | mapping)
    return str(caught.value)


def test_only_the_root_is_required() -> None:
    assert Settings.from_mapping({"root": "/mnt/kv/"}) == Settings(root="/mnt/kv")


def test_a_missing_root_is_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"root is missing.*directory that all replicas share"):
        Settings.from_mapping({})


@pytest.mark.parametrize("root", ["kv", "", None, 3, "~/kv", "/a\0b", "/a\ud800b"])
def test_a_root_that_is_no_absolute_path_is_refused(root: object) -> None:
    assert "must be an absolute path" in refusal(root=root)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("cap_byte", "cap_bytes"), ("lease_second", "lease_seconds"), ("lease", "lease_seconds")],
)
def test_a_misspelt_setting_is_answered_with_the_one_meant(given: str, meant: str) -> None:
    assert refusal(**{given: 1}) == f"unknown setting {given!r}: did you mean {meant}?"


def test_a_setting_unlike_any_is_answered_with_the_list() -> None:
    assert "known settings are root, cap_bytes," in refusal(colour="red")


@pytest.mark.parametrize("value", [True, "5", 1.5, float("nan"), float("inf"), 0, -1, 1 << 62])
def test_a_byte_count_is_a_whole_number_within_its_bounds(value: object) -> None:
    text = refusal(cap_bytes=value)
    assert text.startswith(f"cap_bytes = {value!r}: must be a whole number from 67,108,864 to ")
    assert text.endswith("leave it out to use the namespace's own cap")


def test_a_whole_number_written_as_a_float_is_accepted() -> None:
    settings = Settings.from_mapping({"root": "/mnt/kv", "cap_bytes": 1e12})
    assert settings.cap_bytes == 10**12 and isinstance(settings.cap_bytes, int)


def test_every_size_rate_and_duration_has_an_upper_bound() -> None:  # I9
    for item in dataclasses.fields(Settings):
        bound = item.metadata.get("bound")
        if bound is not None and bound.kind in (int, float):
            assert f"{item.name} = " in refusal(**{item.name: 1e30})


def nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE = {
    "400 digits": 10**400,
    "minus 400 digits": -(10**400),
    "5000 digits": 10**5000,
    "nested lists": nested(100_000),
    "NUL": "/a\0b",
    "half a surrogate pair": "/a\ud800b",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_setting_is_given_the_refusal_names_it_and_is_short(value: object) -> None:
    for item in dataclasses.fields(Settings):
        text = refusal(**{item.name: value})
        assert text.startswith(f"{item.name} = ") and len(text) < 400 and text.isprintable()


def test_a_lease_outlasts_borrowed_buffers() -> None:  # I7
    assert "must be at least twice buffer_ttl_seconds (300)" in refusal(lease_seconds=599)


def test_a_drop_waits_for_the_loads_that_began_before_it() -> None:  # I5
    assert "load_deadline_seconds + refresh_seconds (21)" in refusal(drop_delay_seconds=20.5)


def test_watermarks_are_ordered() -> None:
    assert "must be below high_watermark_ratio" in refusal(low_watermark_ratio=0.9)


def test_text_that_replicas_could_spell_apart_is_refused() -> None:  # I8
    assert "every replica that is to share must spell it alike" in refusal(shard="rank 0")
    assert "every replica" in refusal(model_aliases={"m": "two words"})


def test_an_alias_wins_over_the_identity_for_all_models() -> None:
    settings = Settings.from_mapping(
        {"root": "/mnt/kv", "model_identity": "all", "model_aliases": {"/models/a": "base-1"}}
    )
    assert settings.identity_override("/models/a") == "base-1"
    assert settings.identity_override("/models/b") == "all"
    assert Settings(root="/mnt/kv").identity_override("/models/a") is None


def test_equal_settings_are_one_key() -> None:
    first = Settings.from_mapping({"root": "/r", "model_aliases": {"a": "1", "b": "2"}})
    second = Settings.from_mapping({"root": "/r/", "model_aliases": {"b": "2", "a": "1"}})
    assert {first: 1}[second] == 1


def test_a_replaced_setting_is_checked_again() -> None:
    with pytest.raises(ConfigError, match="dirty_bytes_max = 1: must be"):
        dataclasses.replace(Settings(root="/r", dirty_bytes_max=GIB), dirty_bytes_max=1)
