"""Exact mode: the engine's tokens, what of them the tier holds, and falling back where in doubt.

Past 400 lines because every kind of prompt is compared with the engine's tokens here.
"""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from router.asks import Usage
from router.chunkhash import chunk_hashes
from router.exact import EXACT_BYTES_MAX, WAITING_MAX, Exact, ExactAsk, keyspace_of
from router.parity import LENGTHS_WRONG_MAX, SHORTFALLS_MAX
from router.prefix import BLOCK_BYTES, Parsed, ask_of, chain, parse, token_seed
from router.registry import AnnouncedReplica
from router.tier import Keyspace, kv_ranks
from router.tokens import Kind, Tokenizer, TokenizerError, ids_of, kind_of, open_tokenizer
from tests.router.identity.byte_tokenizer import write_byte_tokenizer

CHAT, COMPLETION = b"/v1/chat/completions", b"/v1/completions"
REPLICA = AnnouncedReplica(
    "", "http://a:1", realm="ab" * 16, chunk_tokens=16, hash_algorithm="blake3", kv_world_size=2
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory, as far as its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    write_byte_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return open_tokenizer(str(folder))


class Now(Executor):
    """Work is done when it is submitted, or when `let_go` is called."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        if self.held is None:
            work()
        else:
            self.held.append(work)
        return future


class FakeTier:
    """Holds the first `chunks` chunks of anything. `asked` is what was looked up."""

    is_current = True

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.asked: list[tuple[list[bytes], Keyspace, str]] = []

    def held_tokens(self, hashes: list[bytes], space: Keyspace, salt: str = "") -> int:
        self.asked.append((hashes, space, salt))
        return min(self.chunks, len(hashes)) * space.chunk_tokens


def exact_of(tokenizer: Tokenizer, tier: FakeTier | None = None) -> Exact:
    """One that has been compared with an engine that agrees."""
    made = Exact(tokenizer, tier, Now())  # type: ignore[arg-type]  # a stand-in
    made.serves(["m"], ["lora"])
    made.announced([REPLICA])
    asyncio.run(made.check(Engine(tokenizer).post, "a", "m"))
    return made


class Engine:
    """An engine's /tokenize, by the same files unless told otherwise."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.wrong: set[Kind] = set()
        self.refuses: set[Kind] = set()

    async def post(self, path: str, body: bytes) -> bytes | None:
        assert path == "/tokenize"
        fields = json.loads(body)
        kind = kind_of(CHAT if "messages" in fields else COMPLETION, fields)
        assert kind is not None and fields["model"] == "m"
        ids = ids_of(self.tokenizer, kind, fields)
        if kind in self.refuses or ids is None:
            return None
        return json.dumps({"tokens": ids + [1] * (kind in self.wrong)}).encode()


def body(**fields: Any) -> list[bytes]:
    return [json.dumps({"model": "m", **fields}).encode()]


def ask(exact: Exact, path: bytes, **fields: Any) -> ExactAsk:
    return asyncio.run(exact.ask(path, parse(path, body(**fields)), 0.25))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETION, {"prompt": "a lone \ud800"}),
        (COMPLETION, {"prompt": "text", "cache_salt": "\ud800"}),
        (CHAT, {"messages": [user("a lone \ud800")]}),
        (
            CHAT,
            {
                "messages": [
                    user("x"),
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}],
                    },
                ]
            },
        ),
    ],
    ids=["prompt", "salt", "message", "arguments"],
)
def test_what_a_tokenizer_cannot_take_is_weighed_by_its_characters(
    tokenizer: Tokenizer, path: bytes, fields: dict[str, Any]
) -> None:
    asked = ask(exact_of(tokenizer, FakeTier(512)), path, **fields)
    assert asked.ask.prompt_tokens >= 1


def test_an_engine_that_answers_what_nobody_can_read_proves_nothing(tokenizer: Tokenizer) -> None:
    async def post(path: str, body: bytes) -> bytes | None:
        return DEEP.encode()

    made = Exact(tokenizer, None, Now())
    asyncio.run(made.check(post, "a", "m"))
    assert not made.parity.trusts(Kind.COMPLETION)


# -- tokens ----------------------------------------------------------------------------------------


def text_of(tokenizer: Any, kind: Kind, **fields: Any) -> str | None:
    ids = ids_of(tokenizer, kind, fields)
    return None if ids is None else tokenizer.decode(ids)


def test_a_chat_is_its_template_without_more_special_tokens(tokenizer: Tokenizer) -> None:
    said = text_of(tokenizer, Kind.CHAT, messages=[user("grün")])
    assert said == "<|user|>grün</s><|assistant|>"


def test_a_completion_has_the_special_tokens_unless_it_says_no(tokenizer: Tokenizer) -> None:
    assert text_of(tokenizer, Kind.COMPLETION, prompt="x") == "<s>x"
    assert text_of(tokenizer, Kind.COMPLETION, prompt="x", add_special_tokens=False) == "x"


@pytest.mark.parametrize(
    "fields,end",
    [
        ({"add_generation_prompt": False}, "</s>"),
        ({"reasoning_effort": "none"}, "</s>quick<|assistant|>"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "</s>quick<|assistant|>"),
        ({"tools": [{"type": "function"}]}, '[{"type": "function"}]<|assistant|>'),
    ],
)
def test_what_a_request_tells_its_template(
    tokenizer: Tokenizer, fields: dict[str, Any], end: str
) -> None:
    said = text_of(tokenizer, Kind.CHAT, messages=[user("x")], **fields)
    assert said is not None and said.endswith(end)


def test_a_tool_reaches_the_template_as_vllm_writes_it(tokenizer: Tokenizer) -> None:
    tool = {"function": {"strict": None, "x": 1, "parameters": {}, "name": "f"}, "type": "function"}
    said = text_of(tokenizer, Kind.TOOLS, messages=[user("x")], tools=[tool])
    known = '{"name": "f", "description": null, "parameters": {}}'
    assert said == f'<|user|>x</s>[{{"type": "function", "function": {known}}}]<|assistant|>'


def test_tool_arguments_reach_the_template_as_an_object(tokenizer: Tokenizer) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": "deep"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    said = text_of(tokenizer, Kind.CHAT, messages=messages)
    assert said == "<|assistant|>deep</s><|assistant|>"


def test_one_text_part_is_the_text_and_more_is_not_foreseeable(tokenizer: Tokenizer) -> None:
    part = {"type": "text", "text": "x"}
    plain = ids_of(tokenizer, Kind.CHAT, {"messages": [user("x")]})
    assert ids_of(tokenizer, Kind.CHAT, {"messages": [{**user(""), "content": [part]}]}) == plain
    assert ids_of(tokenizer, Kind.CHAT, {"messages": [{**user(""), "content": [part] * 2}]}) is None


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "refusal", "refusal": "x"}],
)
def test_a_part_alone_that_is_no_text_is_not_foreseeable(
    tokenizer: Tokenizer, part: dict[str, Any]
) -> None:
    messages = [user("x"), {**user(""), "content": [part]}]
    assert ids_of(tokenizer, Kind.CHAT, {"messages": messages}) is None


def test_a_template_that_raises_is_not_foreseeable(tokenizer: Tokenizer) -> None:
    messages = [{**user("x"), "tool_calls": [{"function": 3}]}]
    assert ids_of(tokenizer, Kind.CHAT, {"messages": messages}) is None


@pytest.mark.parametrize(
    "path,fields,kind",
    [
        (CHAT, {"messages": []}, Kind.CHAT),
        (CHAT + b"?x=1", {"tools": [1]}, Kind.TOOLS),
        (COMPLETION, {"prompt": "x"}, Kind.COMPLETION),
        (COMPLETION, {"prompt": [1]}, Kind.IDS),
        (COMPLETION, {"prompt": ["x", "y"]}, None),
        (COMPLETION, {"prompt": "x", "truncate_prompt_tokens": 5}, None),
        (CHAT, {"messages": [], "chat_template": "x"}, None),
        (CHAT, {"messages": [], "chat_template_kwargs": {"x": 1}}, Kind.CHAT),
        (CHAT, {"messages": [], "chat_template_kwargs": {"chat_template": "x"}}, None),
        (CHAT, {"messages": [], "chat_template_kwargs": {"tokenizer_kwargs": {}}}, None),
        (b"/v1/embeddings", {"input": "x"}, None),
    ],
)
def test_kinds(path: bytes, fields: dict[str, Any], kind: Kind | None) -> None:
    assert kind_of(path, fields) is kind


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="directory"):
        open_tokenizer(str(tmp_path))


# -- asks ------------------------------------------------------------------------------------------


def test_an_exact_ask_has_the_tokens_the_chain_and_the_tier(tokenizer: Tokenizer) -> None:
    tier = FakeTier(3)
    exact = exact_of(tokenizer, tier)
    made = ask(exact, CHAT, messages=[user("a" * 900)], cache_salt="s", max_tokens=7).ask
    ids = ids_of(tokenizer, Kind.CHAT, {"messages": [user("a" * 900)]})
    assert ids is not None
    assert (made.prompt_tokens, made.block_tokens, made.output_tokens) == (len(ids), 256, 7)
    assert made.blocks == chain(array("I", ids).tobytes(), token_seed("", "s"), BLOCK_BYTES, 99)
    assert made.shared_tokens == 3 * 16
    space = Keyspace(bytes.fromhex("ab" * 16), 16, kv_ranks(2))
    assert tier.asked == [(chunk_hashes(ids, 16), space, "s")]


def test_an_exact_ask_says_whether_its_answer_streams(tokenizer: Tokenizer) -> None:
    """Or a whole answer's time, decode included, would be taken for a prefill's."""
    exact = exact_of(tokenizer)
    made = [ask(exact, COMPLETION, prompt="a" * 600, stream=flag).ask for flag in (True, False)]
    assert [one.is_streamed for one in made] == [True, False]


def test_equal_tokens_share_blocks_however_they_came(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer)
    text = ask(exact, COMPLETION, prompt="a" * 600).ask
    ids = ids_of(tokenizer, Kind.COMPLETION, {"prompt": "a" * 600})
    assert ask(exact, COMPLETION, prompt=ids).ask.blocks == text.blocks != []


def test_an_adapter_and_a_salt_have_chains_of_their_own(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer)
    kinds: list[dict[str, str]] = [{}, {"model": "lora"}, {"cache_salt": "s"}]
    blocks = [ask(exact, COMPLETION, prompt="a" * 600, **fields).ask.blocks for fields in kinds]
    assert len({tuple(found) for found in blocks}) == 3 and all(blocks)


def test_an_adapter_without_a_salt_is_not_looked_up(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer, FakeTier(1))
    assert ask(exact, COMPLETION, prompt="a" * 99, model="lora").ask.shared_tokens is None
    salted = ask(exact, COMPLETION, prompt="a" * 99, model="lora", cache_salt="l")
    assert salted.ask.shared_tokens == 16


def from_characters(exact: Exact, path: bytes, **fields: Any) -> bool:
    parsed = parse(path, body(**fields))
    made = asyncio.run(exact.ask(path, parsed, 0.25))
    return made == ExactAsk(ask_of(parsed, 0.25))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x", "model": "somebody else's"},
        {"prompt": "x" * (EXACT_BYTES_MAX + 1)},
        {"prompt": ["x", "y"]},
        {"prompt": [1, -1]},
        {"prompt": [1 << 40]},
        {"prompt": ""},
    ],
    ids=["model", "long", "several", "negative", "large", "empty"],
)
def test_what_is_not_exact_is_told_by_its_characters(
    tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    exact = exact_of(tokenizer, FakeTier(1))
    empty = fields["prompt"] == ""  # its <s> is a token
    assert from_characters(exact, COMPLETION, **fields) is not empty


def test_more_waiting_requests_than_allowed_are_told_by_their_characters(
    tokenizer: Tokenizer,
) -> None:
    exact = exact_of(tokenizer)
    executor = exact._executor
    assert isinstance(executor, Now)
    executor.held = []
    parsed = parse(COMPLETION, body(prompt="x"))

    async def crowd() -> list[ExactAsk]:
        asks = [asyncio.ensure_future(exact.ask(COMPLETION, parsed, 0.25)) for _ in range(70)]
        await asyncio.sleep(0)
        for work in executor.held or ():
            work()
        return await asyncio.gather(*asks)

    kinds = [made.kind for made in asyncio.run(crowd())]
    assert kinds == [Kind.COMPLETION] * WAITING_MAX + [None] * (70 - WAITING_MAX)


def test_a_request_does_not_wait_for_its_tokens_for_ever(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.exact.EXACT_SECONDS_MAX", 0.01)
    exact = exact_of(tokenizer)
    executor = exact._executor
    assert isinstance(executor, Now)
    executor.held = []
    assert from_characters(exact, COMPLETION, prompt="x")


def test_what_nobody_waits_for_any_more_takes_its_place_until_a_worker_had_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Cancelled work stays in an executor's queue: 32 bodies a second, for as long as one hangs.
    monkeypatch.setattr("router.exact.EXACT_SECONDS_MAX", 0.01)
    exact = exact_of(tokenizer)
    executor = exact._executor
    assert isinstance(executor, Now)
    held: list[Callable[[], None]] = []
    executor.held = held
    found: list[Kind] = []
    monkeypatch.setattr("router.exact.ids_of", lambda _, kind, fields: found.append(kind))
    parsed = parse(COMPLETION, body(prompt="x"))

    async def hang() -> None:
        for _ in range(2):
            await asyncio.gather(*[exact.ask(COMPLETION, parsed, 0.25) for _ in range(50)])
        assert len(held) == WAITING_MAX
        for work in held:
            work()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (exact._waiting, found) == (0, [])

    asyncio.run(hang())


def test_a_chat_rendered_to_more_than_any_prompt_is_not_foreseeable(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.tokens.CHARACTERS_MAX", 100)
    assert ids_of(tokenizer, Kind.CHAT, {"messages": [user("x" * 50)]}) is not None
    assert ids_of(tokenizer, Kind.CHAT, {"messages": [user("x" * 100)]}) is None


def test_it_tokenizes_off_the_loops_thread(tokenizer: Tokenizer) -> None:
    seen: list[int] = []

    class Spy:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            seen.append(threading.get_ident())
            return [1]

        def apply_chat_template(self, conversation: Any, **_: Any) -> str:
            return ""

    exact = Exact(Spy())
    exact.serves(["m"])
    exact.parity.compared(Kind.COMPLETION, [1], [1], "a")
    ask(exact, COMPLETION, prompt="x")
    exact.close()
    assert seen and threading.get_ident() not in seen


# -- parity ----------------------------------------------------------------------------------------


def test_before_an_engine_was_asked_nothing_is_exact_but_ids(tokenizer: Tokenizer) -> None:
    exact = Exact(tokenizer, executor=Now())
    assert from_characters(exact, COMPLETION, prompt="x")
    assert set(exact.status) == {"completion", "chat", "chat with tools", "tier"}
    assert ask(exact, COMPLETION, prompt=[1, 2], model="").kind is Kind.IDS


def test_an_engine_that_agrees_makes_all_exact(tokenizer: Tokenizer) -> None:
    assert exact_of(tokenizer, FakeTier(1)).status == {}


def test_a_kind_an_engine_tokenizes_differently_is_not_used_and_said(tokenizer: Tokenizer) -> None:
    exact, engine = exact_of(tokenizer), Engine(tokenizer)
    engine.wrong = {Kind.CHAT}
    asyncio.run(exact.check(engine.post, "http://b:1", "m"))
    assert from_characters(exact, CHAT, messages=[user("x")])
    assert "http://b:1 tokenizes a chat differently" in exact.status["chat"]
    assert ask(exact, COMPLETION, prompt="x").kind is Kind.COMPLETION


def test_one_sample_that_agrees_does_not_outvote_another_of_its_kind(
    tokenizer: Tokenizer,
) -> None:
    exact, engine = exact_of(tokenizer), Engine(tokenizer)
    posts: list[bytes] = []

    async def first_wrong(path: str, sent: bytes) -> bytes | None:
        posts.append(sent)
        engine.wrong = {Kind.CHAT} if sum(b'"tools"' not in seen for seen in posts) == 2 else set()
        return await engine.post(path, sent)

    asyncio.run(exact.check(first_wrong, "b", "m"))
    assert set(exact.status) == {"chat", "tier"}


def test_one_engine_that_agrees_does_not_outvote_another(tokenizer: Tokenizer) -> None:
    exact, engine = exact_of(tokenizer), Engine(tokenizer)
    engine.wrong = {Kind.CHAT}
    asyncio.run(exact.check(engine.post, "b", "m"))
    asyncio.run(exact.check(Engine(tokenizer).post, "a", "m"))
    assert not exact.parity.trusts(Kind.CHAT)
    exact.parity.forget("b")
    assert exact.parity.trusts(Kind.CHAT)


def test_an_engine_without_a_template_proves_nothing(tokenizer: Tokenizer) -> None:
    exact, engine = Exact(tokenizer, executor=Now()), Engine(tokenizer)
    engine.refuses = {Kind.CHAT, Kind.TOOLS}
    asyncio.run(exact.check(engine.post, "a", "m"))
    assert [exact.parity.trusts(kind) for kind in Kind] == [True, True, False, False]


def test_reported_lengths_end_the_trust_and_a_new_check_restores_it(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer)
    asked = ask(exact, COMPLETION, prompt="abc")
    exact.answered(asked, Usage(prompt_tokens=4))
    for _ in range(LENGTHS_WRONG_MAX + 1):
        assert exact.parity.trusts(Kind.COMPLETION)
        exact.answered(asked, Usage(prompt_tokens=5))
    assert "5 prompt tokens where ours are 4" in exact.status["completion"]
    assert from_characters(exact, COMPLETION, prompt="abc")
    asyncio.run(exact.check(Engine(tokenizer).post, "a", "m"))
    assert exact.parity.trusts(Kind.COMPLETION)


def report(exact: Exact, cached: int, times: int, *, loads: bool = True) -> None:
    asked = ask(exact, COMPLETION, prompt="a" * 160)
    for _ in range(times):
        exact.answered(asked, Usage(prompt_tokens=161, cached_tokens=cached), loads=loads)


def test_engines_that_do_not_find_what_the_tier_holds_end_its_use(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer, FakeTier(10))
    report(exact, 0, SHORTFALLS_MAX)
    assert exact.status == {}
    report(exact, 0, 1)
    assert "last 0 of 160 tokens" in exact.status["tier"]
    made = ask(exact, COMPLETION, prompt="a" * 160)
    assert made.kind is Kind.COMPLETION and made.ask.shared_tokens is None


@pytest.mark.parametrize("cached,loads", [(160, True), (144, True), (0, False)])
def test_what_engines_find_or_were_asked_to_leave_is_no_shortfall(
    tokenizer: Tokenizer, cached: int, loads: bool
) -> None:
    exact = exact_of(tokenizer, FakeTier(10))
    report(exact, cached, 100, loads=loads)
    assert exact.status == {}


def test_new_replicas_are_believed_again(tokenizer: Tokenizer) -> None:
    exact = exact_of(tokenizer, FakeTier(10))
    report(exact, 0, SHORTFALLS_MAX + 1)
    exact.announced(
        [
            AnnouncedReplica(
                "", "http://b:1", realm="cd" * 16, chunk_tokens=16, hash_algorithm="blake3"
            )
        ]
    )
    assert exact.status == {}


# -- what replicas announce ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes,why",
    [
        ({"hash_algorithm": "sha256_cbor"}, "sha256_cbor"),
        ({"hash_algorithm": ""}, "does not say"),
        ({"realm": ""}, "no realm"),
        ({"chunk_tokens": 0}, "no chunk size"),
    ],
)
def test_a_replica_that_hashes_otherwise_ends_the_look_into_the_tier(
    tokenizer: Tokenizer, changes: dict[str, Any], why: str
) -> None:
    from dataclasses import replace

    exact = exact_of(tokenizer, FakeTier(1))
    exact.announced([REPLICA, replace(REPLICA, url="http://b:1", **changes)])
    assert why in exact.status["tier"]
    assert ask(exact, COMPLETION, prompt="a" * 99).ask.shared_tokens is None


def test_replicas_that_differ_have_no_tier_in_common() -> None:
    from dataclasses import replace

    space = keyspace_of([REPLICA, replace(REPLICA, url="http://b:1")])
    assert isinstance(space, Keyspace) and space.kv_ranks == kv_ranks(2)
    assert "differ" in str(keyspace_of([REPLICA, replace(REPLICA, chunk_tokens=32)]))


def test_parsed_values_are_what_exact_mode_reads() -> None:
    assert Parsed().fields == {} and kind_of(CHAT, Parsed().fields) is Kind.CHAT
