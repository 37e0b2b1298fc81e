"""Exact mode beside a real engine: its tokens, what it stores in the tier, and its KV events."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.demo.fleet import Fleet, Replica, free_ports
from bench.demo.replica_spec import ReplicaSpec, plugin_adapter
from router import announce
from router.asks import Usage
from router.exact import Exact, ExactAsk
from router.kv_events import Follower, follow
from router.prefix import parse
from router.residency import Residency
from router.tier import Tier
from router.tokens import Kind, open_tokenizer
from sharedfs_backend.catalogview import CatalogView
from sharedfs_backend.layout import Seal
from sharedfs_backend.settings import Settings
from tests.router.identity.byte_tokenizer import write_byte_tokenizer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def events_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def talking_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's weights under a tokenizer that reads any text, with a chat template."""
    folder = tmp_path_factory.mktemp("talking") / "model"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*token*"))
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def replica(
    fleet: Fleet, talking_model: Path, root: Path, cores: tuple[str, str], events_port: int
) -> Replica:
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events_port}",
    }
    spec = ReplicaSpec(
        "exact",
        talking_model,
        core=cores[0],
        adapter=plugin_adapter(root),
        engine_arguments=(
            *("--kv-events-config", json.dumps(events)),
            "--enable-prompt-tokens-details",
        ),
    )
    return fleet.start(spec)[0]


@pytest.fixture(scope="module")
def exact(replica: Replica, root: Path) -> Iterator[Exact]:
    """Exact mode as the router makes it from what the replica would announce."""
    options = announce._arguments(
        [
            *("--namespace", str(root)),
            *("--url", f"http://127.0.0.1:{replica.ports.engine}"),
            *("--lmcache-url", f"http://127.0.0.1:{replica.ports.server_http}"),
        ]
    )
    record = announce.replica_of(options, Seal(), announce.ask_over_http)
    assert record is not None
    view = CatalogView(Settings(root=str(root), refresh_seconds=0.1))
    made = Exact(open_tokenizer(record.model), Tier(view))
    made.announced([record])
    made.serves([record.model])
    yield made
    made.close()
    view.close()


def post(replica: Replica, path: str, body: bytes) -> bytes | None:
    url = f"http://127.0.0.1:{replica.ports.engine}{path}"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError:
        return None


async def check(exact: Exact, replica: Replica) -> None:
    async def ask(path: str, body: bytes) -> bytes | None:
        return await asyncio.to_thread(post, replica, path, body)

    await exact.check(ask, "http://replica", str(replica.spec.model))


async def send(
    exact: Exact, replica: Replica, path: str, fields: Mapping[str, Any]
) -> tuple[ExactAsk, Usage]:
    body = json.dumps({"model": str(replica.spec.model), "max_tokens": 1, **fields}).encode()
    asked = await exact.ask(path.encode(), parse(path.encode(), [body]), 0.25)
    answer = await asyncio.to_thread(post, replica, path, body)
    assert answer is not None
    usage = json.loads(answer)["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return asked, Usage(usage["prompt_tokens"], details.get("cached_tokens"))


TEXT = "Tides — grün, 日本語 — rise and fall. "
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TURN = [{"role": "user", "content": TEXT}]
PROMPTS: list[tuple[str, dict[str, Any], Kind]] = [
    (COMPLETION, {"prompt": TEXT * 20}, Kind.COMPLETION),
    (COMPLETION, {"prompt": list(range(10, 200))}, Kind.IDS),
    (CHAT, {"messages": [{"role": "user", "content": TEXT * 20}]}, Kind.CHAT),
    (CHAT, {"messages": TURN, "tools": [TOOL], "tool_choice": "none"}, Kind.TOOLS),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
        Kind.CHAT,
    ),
]


def test_the_engine_agrees_with_every_kind_of_sample(exact: Exact, replica: Replica) -> None:
    asyncio.run(check(exact, replica))
    assert exact.status == {}


@pytest.mark.parametrize("path,fields,kind", PROMPTS)
def test_the_engine_reports_the_lengths_we_computed(
    exact: Exact, replica: Replica, path: str, fields: dict[str, Any], kind: Kind
) -> None:
    asked, usage = asyncio.run(send(exact, replica, path, fields))
    assert asked.kind is kind and asked.ask.prompt_tokens == usage.prompt_tokens
    exact.answered(asked, usage)
    assert exact.status == {}


def test_what_the_engine_stored_is_found_in_the_tier_by_its_text(
    exact: Exact, replica: Replica
) -> None:
    fields = {"messages": [{"role": "user", "content": "shared " * 200}]}

    async def scene() -> tuple[ExactAsk, ExactAsk]:
        before, _usage = await send(exact, replica, CHAT, fields)
        body = json.dumps({"model": str(replica.spec.model), **fields}).encode()
        while True:
            after = await exact.ask(CHAT.encode(), parse(CHAT.encode(), [body]), 0.25)
            if after.ask.shared_tokens:
                return before, after
            await asyncio.sleep(0.1)

    before, after = asyncio.run(asyncio.wait_for(scene(), WAIT_SECONDS))
    assert before.ask.shared_tokens == 0
    assert after.ask.shared_tokens == after.ask.prompt_tokens // 256 * 256 > 1024


def test_the_engines_events_make_our_blocks_resident(
    exact: Exact, replica: Replica, events_port: int
) -> None:
    resident: set[int] = set()

    def hear(change: Residency) -> None:
        resident.difference_update(resident if change.cleared else change.removed)
        resident.update(change.stored)

    async def scene() -> tuple[ExactAsk, int]:
        follower = Follower(hear)
        task = asyncio.create_task(follow(follower, f"tcp://127.0.0.1:{events_port}"))
        await asyncio.sleep(1)  # a subscription has no acknowledgement
        fields = {"prompt": "resident " * 100, "cache_salt": "s"}
        asked, _usage = await send(exact, replica, COMPLETION, fields)
        while len(resident) < len(asked.ask.blocks):
            await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return asked, follower.malformed

    asked, malformed = asyncio.run(asyncio.wait_for(scene(), WAIT_SECONDS))
    assert resident == set(asked.ask.blocks) and malformed == 0
    assert len(resident) == int(asked.ask.prompt_tokens // asked.ask.block_tokens) > 2
