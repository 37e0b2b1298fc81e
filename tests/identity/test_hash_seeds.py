"""Two engines whose hash seeds differ do not share, and are told why (I8).

The seed is what LMCache's token database makes of PYTHONHASHSEED when an engine starts.
"""

from __future__ import annotations

import pytest
import torch

from sharedfs_backend.exceptions import RealmRefused
from tests.identity.fleet import Engine, Fleet, MpMachine, prompt

in_process = pytest.mark.parametrize("fleet", ["inprocess"], indirect=True)
multi_process = pytest.mark.parametrize("fleet", ["mp"], indirect=True)


@in_process
def test_an_engine_with_another_seed_is_refused_and_told_why(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    stored = fleet.start(Engine()).store(prompt(4))
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    with pytest.raises(RealmRefused, match="PYTHONHASHSEED"):
        fleet.start(Engine())
    assert "THIS ENGINE SHARES NO KV" in caplog.text
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert all(map(torch.equal, fleet.start(Engine()).reuse(prompt(4)), stored))


@in_process
def test_an_engine_without_a_seed_does_not_join_one_with(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    fleet.start(Engine()).store(prompt(4))
    monkeypatch.delenv("PYTHONHASHSEED")
    with pytest.raises(RealmRefused):
        fleet.start(Engine())


@multi_process
def test_servers_share_whatever_their_seed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    stored = fleet.start(Engine()).store(prompt(4))
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    found = fleet.start(Engine()).reuse(prompt(4))
    assert len(found) == 4
    assert all(map(torch.equal, found, stored))


@multi_process
def test_servers_of_another_hash_algorithm_do_not_hit(fleet: Fleet) -> None:
    first, second = fleet.start(Engine()), fleet.start(Engine())
    assert isinstance(second, MpMachine)
    second.hash_algorithm = "sha256_cbor"
    first.store(prompt(4))
    assert second.reuse(prompt(4)) == []
