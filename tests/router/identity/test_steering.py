"""Steering: bodies with parameters in them, and what proves that they are honoured."""

from __future__ import annotations

import asyncio
import json
import random
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.asks import Usage
from router.steering import DISREGARDED_MAX, PARAMETERS, Steering, Verdict, judge, with_field

SKIP = {"lmcache.skip_load": True}


class Engine:
    """A replica beside a tier: loads what is there unless it honours `SKIP`."""

    def __init__(self, tier: set[tuple[int, ...]], *, honours: bool, reports: bool = True) -> None:
        self.tier, self.honours, self.reports = tier, honours, reports
        self.sent: list[Mapping[str, Any]] = []

    async def complete(self, fields: Mapping[str, Any]) -> Usage:
        self.sent.append(fields)
        ids = tuple(fields["prompt"])
        skips = self.honours and fields.get("kv_transfer_params") == SKIP
        cached = len(ids) - 1 if ids in self.tier and not skips else 0
        self.tier.add(ids)
        return Usage(len(ids), cached if self.reports else None, 1)


async def at_once() -> None:
    """The tier of these tests shows everything at once."""


def probe(steering: Steering, own: Engine) -> Verdict:
    other = Engine(own.tier, honours=False)
    return asyncio.run(
        steering.probe("r", other.complete, own.complete, 16, random.Random(1), at_once)
    )


def test_no_released_version_has_means_and_nothing_is_asked() -> None:
    engine = Engine(set(), honours=True)
    assert PARAMETERS == {} and probe(Steering(), engine) is Verdict.NO_MEANS
    assert engine.sent == [] and not Steering().can("r")


def test_a_replica_that_leaves_the_load_out_honours_it() -> None:
    steering = Steering(SKIP)
    assert steering.verdict("r") is Verdict.UNTRIED and not steering.can("r")
    assert probe(steering, Engine(set(), honours=True)) is Verdict.HONOURED
    assert steering.can("r") and not steering.can("s")
    steering.forget("r")
    assert not steering.can("r")


def test_a_replica_that_loads_all_the_same_ignores_it() -> None:
    steering = Steering(SKIP)
    assert probe(steering, Engine(set(), honours=False)) is Verdict.IGNORED
    assert not steering.can("r")


def test_a_replica_that_reports_nothing_proves_nothing() -> None:
    assert probe(Steering(SKIP), Engine(set(), honours=True, reports=False)) is Verdict.UNPROVEN


@pytest.mark.parametrize("plain,steered", [(0, 0), (15, 0), (None, 0), (32, None)], ids=str)
def test_without_a_load_that_may_be_left_out_nothing_is_proven(
    plain: int | None, steered: int | None
) -> None:
    usages = Usage(33, plain), Usage(33, steered)
    assert judge(*usages, 16) is Verdict.UNPROVEN
    assert judge(None, usages[1], 16) is judge(usages[0], None, 16) is Verdict.UNPROVEN


def test_answers_that_load_all_the_same_end_the_trust() -> None:
    steering = Steering(SKIP)
    probe(steering, Engine(set(), honours=True))
    loaded, left = Usage(100, 64, 1), Usage(100, 40, 1)
    for usage in [loaded] * (DISREGARDED_MAX - 1) + [left] + [loaded] * (DISREGARDED_MAX - 1):
        steering.answered("r", usage, 32, 16)
        assert steering.can("r")
    steering.answered("r", loaded, 32, 16)
    assert steering.verdict("r") is Verdict.IGNORED


def test_a_body_is_spliced_and_its_pieces_are_not_joined() -> None:
    body = [b" \n", b'{"model": "m", ', b'"prompt": "x"}']
    fields = json.loads(b"".join(body))
    made = Steering(SKIP).steered(body, fields)
    assert json.loads(b"".join(made)) == {**fields, "kv_transfer_params": SKIP}
    assert made[-1] is body[-1] and made[0] is body[0]


def test_what_the_client_set_itself_stays() -> None:
    fields = {"kv_transfer_params": {"lmcache.skip_load": False, "x": 1}, "prompt": "x"}
    made = Steering(SKIP).steered([json.dumps(fields).encode()], fields)
    assert json.loads(b"".join(made)) == fields


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("cut", [1, 3, 9])
def test_a_body_that_does_not_begin_as_utf_8_is_written_anew(coding: str, cut: int) -> None:
    fields = {"prompt": "x", "model": "m"}
    data = json.dumps(fields).encode(coding)
    made = with_field([data[:cut], data[cut:]], fields, "added", SKIP)
    assert json.loads(b"".join(made)) == fields | {"added": SKIP}


JSON = st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=5)


@given(JSON, st.integers(0, 99), st.integers(1, 9), JSON)
def test_every_object_takes_one_more_field(
    fields: dict[str, Any], cut: int, indent: int, values: dict[str, Any]
) -> None:
    data = b" " * indent + json.dumps(fields, indent=indent).encode()
    made = with_field([data[:cut], data[cut:]], fields, "added", values)
    assert json.loads(b"".join(made)) == fields | {"added": fields.get("added") or values}


@pytest.mark.slow
def test_the_installed_lmcache_loads_without_asking_the_request() -> None:
    """The reason why `PARAMETERS` is empty. When this fails a new version may have means: read it,
    and put them there."""
    import inspect

    with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
        warnings.simplefilter("ignore")
        from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
        from lmcache.integration.vllm.vllm_v1_adapter import LMCacheConnectorV1Impl

    for connector in (LMCacheMPConnector, LMCacheConnectorV1Impl):
        lookup = inspect.getsource(connector.get_num_new_matched_tokens)
        assert "kv_transfer_params" not in lookup and "skip_load" not in lookup
        assert "request_configs" in lookup  # handed on to the lookup, which knows no such key
