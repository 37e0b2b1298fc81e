"""Digests over the weights of a model or adapter on disk. Reads model files, never the namespace.

For safetensors: every tensor's name, dtype, shape and content, sampled in blocks whose places
depend only on the tensor's name and size, so that the digest is independent of paths, shard
boundaries and metadata, and yet tells fine-tunes with equal headers apart (I8). Other formats are
sampled as opaque files. Adapters are small and read whole.

Files are stated before and after; one that changed in between is an error, as is anything that
cannot be parsed: `WeightsError`, an identity that cannot be found. Imports no torch.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from sharedfs_backend.layout.canonical import encode

HEADER_BYTES_MAX = 100_000_000
"""The format's own limit on a safetensors header."""

BLOCK_BYTES = 8 * 1024
BLOCKS_PER_TENSOR = 8
"""64 KiB of each tensor; a smaller one is read whole."""

READS_GOAL = 8192
"""Models of very many tensors (experts) get fewer blocks in each, but always one: a thousand
reads take about a second on a network file system, once for each model and machine."""

BLOCKS_PER_OPAQUE_FILE = 1024
READ_BYTES = 1024 * 1024

CONFIG_BYTES_MAX = 16 * 1024 * 1024
CONFIG_NAMES = ("config.json", "params.json", "adapter_config.json")
INDEX_NAME = "model.safetensors.index.json"
OPAQUE_SUFFIXES = (".bin", ".pt", ".pth", ".gguf")

VOLATILE_FIELDS = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "base_model_name_or_path",
        "inference_mode",
        "name_or_path",
        "peft_version",
        "revision",
        "transformers_version",
    }
)
"""Fields of a configuration that say where it came from, not what is computed."""

Stamp = tuple[str, int, int, int, int]
"""A file as stat sees it: path, size, mtime, ctime (ns), inode."""


class WeightsError(Exception):
    """The files do not say what the weights are. The message says which and why."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that a digest covers, by absolute path. Either list of weights may be empty."""

    configs: tuple[str, ...]
    safetensors: tuple[str, ...]
    opaque: tuple[str, ...]

    def stamps(self) -> tuple[Stamp, ...]:
        """What must stay equal for a digest to stay true. Raises OSError."""
        return tuple(_stamp(path) for path in self.configs + self.safetensors + self.opaque)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's place in its file: `start` and `end` are absolute byte offsets."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    start: int
    end: int


def find_files(path: str) -> ModelFiles:
    """The files of a model directory, an adapter directory, or a single weights file."""
    if os.path.isfile(path):
        return _of_kinds((), [path])
    names = sorted(os.listdir(path))
    configs = tuple(os.path.join(path, name) for name in CONFIG_NAMES if name in names)
    if INDEX_NAME in names:
        shards = sorted(set(_weight_map(os.path.join(path, INDEX_NAME)).values()))
        if any(os.path.basename(shard) != shard for shard in shards):
            raise WeightsError(f"{INDEX_NAME} names a file outside its directory")
        return _of_kinds(configs, [os.path.join(path, shard) for shard in shards])
    found = _of_kinds(configs, [os.path.join(path, name) for name in names])
    # Engines load safetensors where there are any, and leave the rest alone.
    return ModelFiles(configs, found.safetensors, () if found.safetensors else found.opaque)


def digest_files(files: ModelFiles, *, whole: bool = False) -> bytes:
    """16 bytes that stand for the weights. `whole` reads every byte instead of samples."""
    if not files.safetensors and not files.opaque:
        raise WeightsError("there are no weights in a format that is known here")
    try:
        before = files.stamps()
        state = blake3()
        for item in _content(files, whole):
            state.update(encode(item))
        if files.stamps() != before:
            raise WeightsError("the files changed while they were read")
    except OSError as error:
        raise WeightsError(f"cannot be read: {error}") from error
    return state.digest(length=16)


def read_header(path: str) -> list[Tensor]:
    """The tensors of a safetensors file, by name. Raises WeightsError, OSError."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(HEADER_BYTES_MAX, size - 8):
            raise WeightsError(f"{path}: no safetensors header")
        table = _parse_json(path, file.read(length))
    data_start = 8 + length
    tensors = [
        _tensor(path, name, entry, data_start, size)
        for name, entry in table.items()
        if name != "__metadata__"
    ]
    return sorted(tensors, key=lambda tensor: tensor.name)


def sample_places(name: str, size: int, blocks: int) -> list[tuple[int, int]]:
    """Offset and length of the blocks to read of `size` bytes: one in each of `blocks` equal
    parts, at a place that depends on the name. All of it where that is not more."""
    if size <= blocks * BLOCK_BYTES:
        return [(offset, min(READ_BYTES, size - offset)) for offset in range(0, size, READ_BYTES)]
    seeds = struct.unpack(f"<{blocks}Q", blake3(name.encode()).digest(length=8 * blocks))
    places = []
    for index, seed in enumerate(seeds):
        start, end = size * index // blocks, size * (index + 1) // blocks
        places.append((start + seed % (end - start - BLOCK_BYTES + 1), BLOCK_BYTES))
    return places


def canonical_config(value: Any) -> Any:
    """A configuration without what does not change the computation, in one spelling."""
    if isinstance(value, dict):
        kept = {
            ("dtype" if key == "torch_dtype" else key): canonical_config(item)
            for key, item in value.items()
            if key not in VOLATILE_FIELDS
        }
        return dict(sorted(kept.items()))
    if isinstance(value, list):
        return [canonical_config(item) for item in value]
    return value


def _content(files: ModelFiles, whole: bool) -> Iterator[list[Any]]:
    for path in files.configs:
        config = canonical_config(_parse_json(path, _read_small(path)))
        yield ["config", os.path.basename(path), json.dumps(config, sort_keys=True)]
    tensors = [tensor for path in files.safetensors for tensor in read_header(path)]
    tensors.sort(key=lambda tensor: tensor.name)
    blocks = max(1, min(BLOCKS_PER_TENSOR, READS_GOAL // max(1, len(tensors))))
    with _Reader() as reader:
        for tensor in tensors:
            size = tensor.end - tensor.start
            places = _all_places(size) if whole else sample_places(tensor.name, size, blocks)
            sample = reader.digest(tensor.path, tensor.start, places)
            yield ["tensor", tensor.name, tensor.dtype, list(tensor.shape), sample]
        for path in files.opaque:
            size = os.path.getsize(path)
            name = os.path.basename(path)
            places = _all_places(size) if whole else sample_places("", size, BLOCKS_PER_OPAQUE_FILE)
            # A single file is often renamed; in a set the names say which part each one is.
            shown = name if len(files.opaque) > 1 else ""
            yield ["file", shown, size, reader.digest(path, 0, places)]


class _Reader:
    """Reads places of files, one file open at a time (tensors of one shard mostly follow)."""

    def __init__(self) -> None:
        self._path = ""
        self._fd = -1

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def digest(self, path: str, start: int, places: list[tuple[int, int]]) -> bytes:
        if path != self._path:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._fd, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path
        state = blake3()
        for offset, length in places:
            data = os.pread(self._fd, length, start + offset)
            if len(data) != length:
                raise WeightsError(f"{path}: ends at byte {start + offset + len(data)}")
            state.update(data)
        return state.digest(length=16)


def _all_places(size: int) -> list[tuple[int, int]]:
    return [(offset, min(READ_BYTES, size - offset)) for offset in range(0, size, READ_BYTES)]


def _tensor(path: str, name: str, entry: Any, data_start: int, size: int) -> Tensor:
    try:
        name.encode()
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        good = isinstance(dtype, str) and all(
            type(number) is int for number in (*shape, start, end)
        )
        good = good and 0 <= start <= end <= size - data_start
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise WeightsError(f"{path}: the header's entry for {name!r} is not valid")
    return Tensor(name, dtype, shape, path, data_start + start, data_start + end)


def _weight_map(path: str) -> dict[str, str]:
    found = _parse_json(path, _read_small(path)).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise WeightsError(f"{path}: there is no weight_map")
    return found


def _read_small(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(CONFIG_BYTES_MAX + 1)
    if len(data) > CONFIG_BYTES_MAX:
        raise WeightsError(f"{path}: is larger than {CONFIG_BYTES_MAX} bytes")
    return data


def _parse_json(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: is not a JSON object")
    return found


def _of_kinds(configs: tuple[str, ...], paths: list[str]) -> ModelFiles:
    return ModelFiles(
        configs,
        tuple(path for path in paths if path.endswith(".safetensors")),
        tuple(path for path in paths if path.endswith(OPAQUE_SUFFIXES)),
    )


def _stamp(path: str) -> Stamp:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
