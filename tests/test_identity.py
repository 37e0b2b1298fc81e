"""What is the same model and what is not (I8): paths, shards, fine-tunes, hub ids, adapters.

Past 400 lines because the pairs that must share and those that must not are read side by side.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend import identity, weights
from sharedfs_backend.identity import (
    SALT_CHARS_MAX,
    SALT_FORBIDDEN,
    ModelIdentity,
    hub_commit,
    lora_digest,
    lora_salt,
    model_identity,
)
from sharedfs_backend.weights import WeightsError, read_header, sample_places

CONFIG = {"model_type": "llama", "hidden_size": 512, "rope_theta": 10000.0}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_NS = 1 << 62


def tensor_data(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


TENSORS = {
    "embed": ("BF16", (512, 512), tensor_data(1, 512 * 1024)),
    "norm": ("F32", (512,), tensor_data(2, 2048)),
    "q_proj": ("BF16", (1024, 512), tensor_data(3, 1024 * 1024)),
}
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def write_safetensors(path: Path, tensors: Tensors, metadata: str = "pt") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": metadata}}
    offset, data = 0, b""
    for name, (dtype, shape, content) in tensors.items():
        end = offset + len(content)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset, data = end, data + content
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data)


def write_model(path: Path, tensors: Tensors = TENSORS, config: Mapping[str, Any] = CONFIG) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", tensors)
    return path


def find(path: Path | str, cache: Path | None = None, **more: Any) -> ModelIdentity:
    environ = {"XDG_CACHE_HOME": str(cache)} if cache else {}
    return model_identity(str(path), environ=environ, wall_ns=lambda: LATER_NS, **more)


def changed(name: str, at: int, size: int = 1) -> Tensors:
    dtype, shape, content = TENSORS[name]
    flipped = bytes(byte ^ 1 for byte in content[at : at + size])
    return {**TENSORS, name: (dtype, shape, content[:at] + flipped + content[at + size :])}


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Any:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_same_weights_under_two_paths_are_one_model(tmp_path: Path) -> None:
    first, second = find(write_model(tmp_path / "a")), find(write_model(tmp_path / "b/c"))
    assert first == second
    assert first.verified and first.text.startswith("weights:") and first.note == ""


def test_a_symbolic_link_is_the_model_it_leads_to(tmp_path: Path) -> None:
    model = write_model(tmp_path / "a")
    (tmp_path / "link").symlink_to(model)
    assert find(tmp_path / "link") == find(model)


def test_fine_tunes_with_equal_config_and_headers_are_two_models(tmp_path: Path) -> None:
    tuned: Tensors = {**TENSORS, "q_proj": ("BF16", (1024, 512), tensor_data(9, 1024 * 1024))}
    assert find(write_model(tmp_path / "a")) != find(write_model(tmp_path / "b", tuned))


def test_a_change_in_a_small_tensor_is_always_seen(tmp_path: Path) -> None:
    original = find(write_model(tmp_path / "a"))
    assert all(
        find(write_model(tmp_path / f"b{at}", changed("norm", at))) != original
        for at in (0, 1000, 2047)
    )


def test_a_change_over_an_eighth_of_a_large_tensor_is_always_seen(tmp_path: Path) -> None:
    original = find(write_model(tmp_path / "a"))
    eighth = 128 * 1024
    assert all(
        find(write_model(tmp_path / f"b{part}", changed("q_proj", part * eighth, eighth)))
        != original
        for part in range(8)
    )


@pytest.mark.parametrize(
    "tensors",
    [
        {**TENSORS, "norm": ("F16", (512,), TENSORS["norm"][2])},
        {**TENSORS, "norm": ("F32", (256, 2), TENSORS["norm"][2])},
        {"embed": TENSORS["embed"], "norm2": TENSORS["norm"], "q_proj": TENSORS["q_proj"]},
        {"embed": TENSORS["embed"], "norm": TENSORS["norm"]},
    ],
)
def test_names_dtypes_and_shapes_count(tensors: Tensors, tmp_path: Path) -> None:
    assert find(write_model(tmp_path / "a")) != find(write_model(tmp_path / "b", tensors))


def test_order_metadata_and_sharding_do_not_count(tmp_path: Path) -> None:
    single = find(write_model(tmp_path / "a"))
    sharded = tmp_path / "b"
    write_model(sharded)
    (sharded / "model.safetensors").unlink()
    parts: list[Tensors] = [
        {"q_proj": TENSORS["q_proj"], "embed": TENSORS["embed"]},
        {"norm": TENSORS["norm"]},
    ]
    index: dict[str, str] = {}
    for number, part in enumerate(parts):
        write_safetensors(sharded / f"model-{number}.safetensors", part, metadata="np")
        index |= dict.fromkeys(part, f"model-{number}.safetensors")
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    write_safetensors(sharded / "consolidated.safetensors", changed("norm", 0))  # not in the index
    assert find(sharded) == single


def test_where_a_config_came_from_does_not_count_but_what_it_computes_does(tmp_path: Path) -> None:
    plain = {**CONFIG, "dtype": "bfloat16"}
    moved = {
        "_name_or_path": "/x",
        "transformers_version": "9",
        **CONFIG,
        "torch_dtype": "bfloat16",
    }
    rope = {**plain, "rope_theta": 500000.0}
    nested = {**plain, "text_config": {"hidden_size": 1, "_name_or_path": "y"}}
    stripped = {**plain, "text_config": {"hidden_size": 1}}
    found = [
        find(write_model(tmp_path / str(number), config=config))
        for number, config in enumerate([plain, moved, rope, nested, stripped])
    ]
    assert found[0] == found[1] and found[3] == found[4]
    assert len({item.text for item in found}) == 3


def test_other_weight_formats_are_sampled_as_files(tmp_path: Path) -> None:
    def binary(name: str, content: bytes) -> ModelIdentity:
        path = tmp_path / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps(CONFIG))
        (path / "pytorch_model.bin").write_bytes(content)
        return find(path)

    content = tensor_data(5, 3 << 20)
    first, second = binary("a", content), binary("b", content)
    tuned = binary("c", content[: 1 << 20] + tensor_data(6, 2 << 20))
    assert first == second != tuned
    assert first.verified


def test_safetensors_are_preferred_to_other_formats(tmp_path: Path) -> None:
    with_both = write_model(tmp_path / "a")
    (with_both / "pytorch_model.bin").write_bytes(b"x")
    assert find(with_both) == find(write_model(tmp_path / "b"))


def test_a_single_weights_file_is_a_model(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(tensor_data(7, 100_000))
    assert find(tmp_path / "a.gguf") == find(tmp_path / "b.gguf")
    assert find(tmp_path / "a.gguf").verified


def test_a_hub_id_is_the_commit_it_resolves_to(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT + "\n")
    for environ in (
        {"HF_HOME": str(tmp_path)},
        {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/nowhere"},
        {"HUGGINGFACE_HUB_CACHE": str(tmp_path / "hub")},
    ):
        assert hub_commit("org/model", environ) is None  # no snapshot yet: nothing was loaded
        (folder / "snapshots" / COMMIT).mkdir(parents=True)
        assert model_identity("org/model", environ=environ) == ModelIdentity(f"hub:{COMMIT}", True)
        (folder / "snapshots" / COMMIT).rmdir()


def test_the_hub_cache_is_looked_for_where_its_client_puts_it(tmp_path: Path) -> None:
    folder = tmp_path / ".cache/huggingface/hub/models--gpt2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    assert hub_commit("gpt2", {"HOME": str(tmp_path)}) == COMMIT
    assert hub_commit("gpt2", {"XDG_CACHE_HOME": str(tmp_path / ".cache")}) == COMMIT


@pytest.mark.parametrize("ref", ["main", "", "../../../etc", COMMIT[:39], COMMIT.upper(), "\xff"])
def test_a_ref_that_is_no_commit_identifies_nothing(ref: str, tmp_path: Path) -> None:
    folder = tmp_path / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "snapshots").mkdir()
    (folder / "refs" / "main").write_text(ref, encoding="latin-1")
    assert hub_commit("org/model", {"HF_HUB_CACHE": str(tmp_path)}) is None


@pytest.mark.parametrize("name", ["../x", "a/b/c", "/abs", "a--b", "a\0b", "", "org/.."])
def test_a_name_that_is_no_hub_id_is_not_looked_up(name: str, tmp_path: Path) -> None:
    assert hub_commit(name, {"HF_HUB_CACHE": str(tmp_path)}) is None


def test_a_bare_name_is_unverified_and_says_what_to_set() -> None:
    found = find("org/unknown")
    assert (found.text, found.verified) == ("name:org/unknown", False)
    assert "set model_identity" in found.note


def test_a_strict_identity_is_private_to_the_process_and_stable_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, again = find("m", strict=True), find("m", strict=True)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    other = find("m", strict=True)
    assert first == again and first != other and not first.verified
    assert find("m2", strict=True) != other


def test_a_configured_identity_wins(tmp_path: Path) -> None:
    assert find(write_model(tmp_path / "a"), override="v7") == ModelIdentity("v7", True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}"),
        lambda path: path.write_bytes(struct.pack("<Q", 4) + b"[[]]"),
        lambda path: path.write_bytes(struct.pack("<Q", 8) + b'{"a": 1}'),
        lambda path: path.write_bytes(struct.pack("<Q", 4) + b"\xff\xff\xff\xff"),
        lambda path: path.unlink(),
    ],
)
def test_weights_that_cannot_be_read_identify_nothing(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "a")
    damage(model / "model.safetensors")
    found = find(model)
    assert (found.text, found.verified) == (f"name:{model}", False)


def test_a_shard_outside_its_directory_or_missing_identifies_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "a")
    for shard in ("../b.safetensors", "missing.safetensors"):
        index = {"weight_map": {"norm": shard}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        assert not find(model).verified


def test_offsets_outside_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"12345678")
    with pytest.raises(WeightsError, match="not valid"):
        read_header(path.as_posix())


def test_a_file_that_changes_while_it_is_read_identifies_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "a")
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        os.utime(model / "config.json", ns=(1, offset))
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert "changed while they were read" in find(model).note


def test_the_library_of_the_format_is_understood(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    arrays = {"b": numpy.arange(6, dtype="<f4").reshape(2, 3), "a": numpy.zeros((), "<i8")}
    safetensors.save_file(arrays, path)
    found = read_header(str(path))
    assert [(item.name, item.dtype, item.shape) for item in found] == [
        ("a", "I64", ()),
        ("b", "F32", (2, 3)),
    ]
    assert path.read_bytes()[found[1].start : found[1].end] == arrays["b"].tobytes()


def test_samples_are_bounded_spread_and_the_same_everywhere() -> None:
    places = sample_places("layers.0.q_proj", 10_000_000, 8)
    assert sum(length for _, length in places) == 64 * 1024
    assert [offset * 8 // 10_000_000 for offset, _ in places] == list(range(8))
    assert places == sample_places("layers.0.q_proj", 10_000_000, 8)
    assert places != sample_places("layers.1.q_proj", 10_000_000, 8)
    assert sample_places("a", 65537, 8)[-1][0] + 8192 <= 65537


def test_reads_stay_bounded_for_very_many_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "READS_GOAL", 16)
    reads: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    many: Tensors = {f"e{number}": ("U8", (20_000,), b"x" * 20_000) for number in range(32)}
    write_model(tmp_path / "a", many)
    find(tmp_path / "a")
    assert reads == [8192] * 32


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "sharedfs-backend" / "identity").iterdir())


def test_weights_are_sampled_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache, runs = write_model(tmp_path / "a"), tmp_path / "cache", []
    real = weights.digest_files

    def counted(files: weights.ModelFiles) -> bytes:
        runs.append(files)
        return real(files)

    monkeypatch.setattr(identity, "digest_files", counted)
    first, again = find(model, cache), find(model, cache)
    assert first == again and len(runs) == 1
    write_model(model, changed("norm", 7))
    tuned = find(model, cache)
    assert tuned != first and len(runs) == 2


def test_another_model_put_in_the_place_of_a_cached_one_is_seen(tmp_path: Path) -> None:
    """Same path, same sizes, same modification times: the inodes differ."""
    cache = tmp_path / "cache"
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two", changed("norm", 7))
    for path in (*one.iterdir(), *two.iterdir()):
        os.utime(path, ns=(1, 1))
    one.rename(tmp_path / "m")
    first = find(tmp_path / "m", cache)
    (tmp_path / "m").rename(one)
    two.rename(tmp_path / "m")
    assert find(tmp_path / "m", cache) != first


def test_a_damaged_cache_entry_is_computed_again(tmp_path: Path) -> None:
    model, cache = write_model(tmp_path / "a"), tmp_path / "cache"
    first = find(model, cache)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:]):
        entry.write_bytes(damaged)
        assert find(model, cache) == first
        assert entry.read_bytes() == whole


def test_files_that_have_just_changed_are_not_cached(tmp_path: Path) -> None:
    model, cache = write_model(tmp_path / "a"), tmp_path / "cache"
    model_identity(str(model), environ={"XDG_CACHE_HOME": str(cache)})
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    model = write_model(tmp_path / "a")
    (tmp_path / "file").write_text("")
    assert find(model, tmp_path / "file") == find(model)


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharedfs_backend.identity_cache.ENTRIES_MAX", 2)
    for number in range(4):
        model = write_model(tmp_path / "a", changed("norm", number))
        find(model, tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 2


def write_adapter(path: Path, tensors: Tensors = TENSORS, base: str = "/models/base") -> str:
    path.mkdir(parents=True)
    config = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": base}
    (path / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(path / "adapter_model.safetensors", tensors)
    return str(path)


def test_one_adapter_under_two_paths_has_one_digest_and_every_byte_counts(tmp_path: Path) -> None:
    first = lora_digest(write_adapter(tmp_path / "a"))
    assert first == lora_digest(write_adapter(tmp_path / "b", base="/elsewhere"))
    assert all(
        lora_digest(write_adapter(tmp_path / f"c{at}", changed("q_proj", at))) != first
        for at in (0, 123_456, 700_000, (1 << 20) - 1)
    )


def test_a_lora_salt_is_one_that_lmcache_takes_and_keeps_callers_apart(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    other = write_adapter(tmp_path / "b", changed("norm", 0))
    salts = [
        lora_salt(path, salt)
        for path in (adapter, other)
        for salt in ("", "tenant", "x" * 128, "y" * 128)
    ]
    assert len(set(salts)) == 8
    assert all(len(salt) <= SALT_CHARS_MAX and not SALT_FORBIDDEN & set(salt) for salt in salts)
    assert lora_salt(adapter) == lora_digest(adapter)


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0", "x" * 129])
def test_a_salt_that_lmcache_would_refuse_is_refused(salt: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache_salt"):
        lora_salt(write_adapter(tmp_path / "a"), salt)


def test_an_adapter_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(WeightsError):
            lora_digest(str(path))


def test_files_put_there_a_moment_ago_with_old_times_are_not_cached_yet(tmp_path: Path) -> None:
    """As a copy that keeps times does: a second one within the same tick would look the same."""
    model, cache = write_model(tmp_path / "m"), tmp_path / "cache"
    for path in model.iterdir():
        os.utime(path, ns=(1, 1))
    just_now = max(path.stat().st_ctime_ns for path in model.iterdir())
    environ = {"XDG_CACHE_HOME": str(cache)}
    assert model_identity(str(model), environ=environ, wall_ns=lambda: just_now).verified
    assert not cache.exists()
