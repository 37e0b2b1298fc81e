"""Who shares KV with whom, in both of LMCache's modes (I8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.identity.fleet import Engine, Fleet, Tensors, prompt

BASE = Engine()

STRANGERS: dict[str, tuple[Engine, Engine]] = {
    "float32 and bfloat16": (BASE, replace(BASE, dtype="bfloat16")),
    "float16 and bfloat16": (replace(BASE, dtype="float16"), replace(BASE, dtype="bfloat16")),
    "two fine-tunes under one path": (BASE, replace(BASE, weights="tuned")),
    "two salts": (replace(BASE, salt="tenant-1"), replace(BASE, salt="tenant-2")),
    "a salt and none": (replace(BASE, salt="tenant-1"), BASE),
    "two adapters": (replace(BASE, lora="loras/one"), replace(BASE, lora="loras/two")),
    "an adapter and its base model": (replace(BASE, lora="loras/one"), BASE),
    "an adapter for two tenants": (
        replace(BASE, lora="loras/one", salt="tenant-1"),
        replace(BASE, lora="loras/one", salt="tenant-2"),
    ),
    "two shards": (replace(BASE, shard="0of2"), replace(BASE, shard="1of2")),
    "two ranks": (replace(BASE, world=2), replace(BASE, world=2, rank=1)),
    "one rank and two": (BASE, replace(BASE, world=2)),
}

RELATIVES: dict[str, tuple[Engine, Engine]] = {
    "the same weights under two paths": (BASE, replace(BASE, model="elsewhere/renamed")),
    "an adapter under two paths": (
        replace(BASE, lora="loras/one"),
        replace(BASE, lora="elsewhere/one-again"),
    ),
    "both ranks of two": (replace(BASE, world=2, rank=1), replace(BASE, world=2, rank=1)),
    "a shard restarted": (replace(BASE, shard="1of2"), replace(BASE, shard="1of2")),
}


def cases(pairs: dict[str, tuple[Engine, Engine]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", list(pairs.values()), ids=list(pairs))


def same(left: Tensors, right: Tensors) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


@cases(STRANGERS)
def test_strangers_do_not_share(fleet: Fleet, pair: tuple[Engine, Engine]) -> None:
    """Both store one prompt; each finds its own KV again, and nobody else's."""
    tokens, later = prompt(4), prompt(3, seed=2)
    first = fleet.start(pair[0])
    one = first.store(tokens)
    second = fleet.start(pair[1])
    assert second.reuse(tokens) == []
    two = second.store(tokens)
    second.store(later)
    assert first.reuse(later) == []
    assert same(fleet.start(pair[1]).reuse(tokens), two)
    assert same(fleet.start(pair[0]).reuse(tokens), one)


@cases(RELATIVES)
def test_relatives_share(fleet: Fleet, pair: tuple[Engine, Engine]) -> None:
    stored = fleet.start(pair[0]).store(prompt(4))
    assert same(fleet.start(pair[1]).reuse(prompt(5)), stored)


def test_a_symbolic_link_to_the_weights_shares(fleet: Fleet) -> None:
    stored = fleet.start(BASE).store(prompt(4))
    (fleet.folder / "link").symlink_to(fleet.folder / BASE.model)
    assert same(fleet.start(replace(BASE, model="link")).reuse(prompt(4)), stored)


def test_the_fine_tunes_have_equal_headers(fleet: Fleet) -> None:
    """What the test above relies on: only the tensors' content tells them apart."""
    contents = []
    for weights in ("base", "tuned"):
        fleet.start(replace(BASE, weights=weights))
        folder = fleet.folder / BASE.model
        data = (folder / "model.safetensors").read_bytes()
        header_bytes = 8 + int.from_bytes(data[:8], "little")
        stat = (folder / "model.safetensors").stat()
        config = (folder / "config.json").read_bytes()
        contents.append((data[:header_bytes], config, stat.st_size, stat.st_mtime_ns))
    assert contents[0] == contents[1]
