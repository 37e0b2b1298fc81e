"""Prefixes: canonical bytes and their chain, from request bodies as clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import prefix
from router.canonical import MEDIA_BYTES, MEDIA_MAX
from router.prefix import BLOCK_BYTES, VALUES_MAX, Parsed, _decoded, ask_of, model_of, parse

CHAT = b"/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are careful. " * 200}


def chat(*messages: dict[str, Any], **fields: Any) -> Parsed:
    return parse(CHAT, [json.dumps({"model": "m", "messages": messages, **fields}).encode()])


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def blocks_of(parsed: Parsed) -> int:
    return len(parsed.ask_blocks)


def test_a_conversation_grows_without_changing_its_blocks() -> None:
    first = chat(SYSTEM, user("why? " * 400))
    second = chat(SYSTEM, user("why? " * 400), {"role": "assistant", "content": "so"}, user("ah"))
    assert second.ask_blocks[: blocks_of(first)] == first.ask_blocks
    assert blocks_of(first) == first.canonical_bytes // BLOCK_BYTES > 4


def test_prompts_share_blocks_up_to_where_they_part() -> None:
    left, right = chat(SYSTEM, user("a" * 8000)), chat(SYSTEM, user("b" * 8000))
    shared = len(SYSTEM["content"]) // BLOCK_BYTES
    assert left.ask_blocks[:shared] == right.ask_blocks[:shared]
    assert set(left.ask_blocks[shared + 1 :]).isdisjoint(right.ask_blocks)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "other"},
        {"cache_salt": "tenant"},
        {"chat_template": "{{ x }}"},
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "messages": [user("a" * 1999)],
        },
    ],
)
def test_what_changes_the_prompts_beginning_changes_every_block(fields: dict[str, Any]) -> None:
    plain, other = chat(user("a" * 1999)), chat(user("a" * 1999), **fields)
    assert blocks_of(plain) > 0 and set(plain.ask_blocks).isdisjoint(other.ask_blocks)


@pytest.mark.parametrize("fields", [{"temperature": 1}, {"stream": True}, {"max_tokens": 3}])
def test_what_does_not_change_the_prompt_changes_no_block(fields: dict[str, Any]) -> None:
    assert chat(user("a" * 1999), **fields).ask_blocks == chat(user("a" * 1999)).ask_blocks


def test_tools_come_after_the_system_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 4000}}]
    plain, tooled = chat(SYSTEM, user("x")), chat(SYSTEM, user("x"), tools=tools)
    shared = len(SYSTEM["content"]) // BLOCK_BYTES
    assert tooled.ask_blocks[:shared] == plain.ask_blocks[:shared]
    assert blocks_of(tooled) == blocks_of(plain) + 4


def test_text_in_parts_is_the_text() -> None:
    text = "word " * 300
    parts = [{"type": "text", "text": text}]
    assert chat(user(parts)).ask_blocks == chat(user(text)).ask_blocks != []


def test_tool_calls_and_their_answers_are_part_of_the_prompt() -> None:
    def turn(argument: str) -> Parsed:
        call = {"id": "1", "function": {"name": "f", "arguments": argument * 1000}}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        return chat(user("q"), asked, {"role": "tool", "tool_call_id": "1", "content": "r"})

    assert set(turn("a").ask_blocks).isdisjoint(turn("b").ask_blocks)
    assert turn("a").ask_blocks == turn("a").ask_blocks


def test_an_image_is_known_by_its_bytes_and_weighs_some_hundred_tokens() -> None:
    def picture(data: str) -> Parsed:
        url = "data:image/png;base64," + data
        return chat(user([{"type": "image_url", "image_url": {"url": url}}]))

    small, large = picture("AAAA"), picture("AAAA" * 100_000)
    assert small.canonical_bytes == large.canonical_bytes >= MEDIA_BYTES
    assert set(small.ask_blocks).isdisjoint(large.ask_blocks)


@pytest.mark.parametrize("messages", [1, 4 * MEDIA_MAX])
def test_more_images_than_a_prompt_can_have_take_no_more_memory(messages: int) -> None:
    part = {"type": "image_url", "image_url": "a"}
    asked = [user([part] * (4 * MEDIA_MAX // messages))] * messages
    assert chat(*asked).canonical_bytes <= 2 * MEDIA_MAX * MEDIA_BYTES


def test_a_prompt_of_token_ids_is_counted_exactly() -> None:
    ids = list(range(1000))
    parsed = parse(b"/v1/completions", [json.dumps({"model": "m", "prompt": ids}).encode()])
    ask = ask_of(parsed, tokens_per_byte=0.9)
    assert (ask.prompt_tokens, ask.block_tokens, len(ask.blocks)) == (1000, 256, 3)


@pytest.mark.parametrize("prompt", ["ab" * 600, ["ab" * 600, "c"], [[1] * 300, [2]], [1] * 300])
def test_every_kind_of_prompt_has_blocks(prompt: Any) -> None:
    parsed = parse(b"/v1/completions", [json.dumps({"prompt": prompt}).encode()])
    assert parsed.error is None and parsed.ask_blocks


def test_the_responses_api_puts_instructions_first() -> None:
    body = {"model": "m", "instructions": "i" * 1200, "input": "q" * 1200}
    parsed = parse(b"/v1/responses", [json.dumps(body).encode()])
    other = parse(b"/v1/responses", [json.dumps({**body, "input": "r" * 1200}).encode()])
    assert parsed.ask_blocks[0] == other.ask_blocks[0]
    assert parsed.ask_blocks[1] != other.ask_blocks[1]


def test_a_request_says_how_it_wants_its_answer() -> None:
    parsed = chat(user("x"), stream=True, max_tokens=9, max_completion_tokens=7)
    assert (parsed.model, parsed.stream, parsed.output_tokens) == ("m", True, 7)
    assert not parsed.wants_usage
    assert chat(user("x"), stream=True, stream_options={"include_usage": True}).wants_usage
    assert chat(user("x")).wants_usage


def test_a_body_in_pieces_is_one_body() -> None:
    data = json.dumps({"model": "m", "messages": [user("a" * 1999)]}).encode()
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]
    assert parse(CHAT, pieces) == parse(CHAT, [data])


def test_a_path_that_is_not_prefilled_has_no_prompt() -> None:
    parsed = parse(b"/tokenize", [json.dumps({"model": "m", "prompt": "a" * 1999}).encode()])
    assert (parsed.model, parsed.ask_blocks, parsed.error) == ("m", [], None)


def test_a_short_prompt_has_an_affinity_without_a_block() -> None:
    assert chat(user("a")).affinity == chat(user("a")).affinity != chat(user("b")).affinity
    assert chat(user("a")).ask_blocks == []


def test_a_cache_key_of_the_clients_own_decides_the_affinity() -> None:
    left, right = chat(user("a"), prompt_cache_key="s"), chat(user("b"), prompt_cache_key="s")
    assert left.affinity == right.affinity != chat(user("a")).affinity


def test_the_number_of_blocks_is_bounded_and_the_weight_is_not() -> None:
    body = json.dumps({"model": "m", "prompt": "a" * 100 * BLOCK_BYTES}).encode()
    parsed = parse(b"/v1/completions", [body], blocks_max=10)
    assert (blocks_of(parsed), parsed.canonical_bytes) == (10, 100 * BLOCK_BYTES)
    assert ask_of(parsed).prompt_tokens == 100 * BLOCK_BYTES / 4


BAD = [
    b"",
    b"[]",
    b'"text"',
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"messages": 7}',
    b'{"messages": ["text"]}',
    b'{"messages": [{"role": 1, "content": 2}]}',
    b'{"messages": [{"role": "user", "content": [null]}]}',
    b'{"n": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("body", BAD)
def test_a_body_that_is_no_request_is_a_value_with_an_error(body: bytes) -> None:
    parsed = parse(CHAT, [body])
    assert parsed.error and parsed.ask_blocks == [] and ask_of(parsed).prompt_tokens == 1


ODD = [
    b'{"model": "a", "model": "b"}',
    b'{"model": "\\ud800"}',
    b'{"model": "\\ud83d\\ude00"}',
    b'{"n": NaN, "m": -Infinity}',
    b'{"n": 1e999, "m": 1e-999, "k": -0, "x": -0.0}',
    b'{"n": 18446744073709551616, "m": -9223372036854775809}',
    b'{"n": 123456789012345678901234567890.5e3}',
    b'{"n": 01}',
    b'{"n": "\x01"}',
    b'{"n": "\xff"}',
    b'{"n": "\xed\xa0\x80"}',
    b'{"n": 1}x',
    b'{"n": 1,}',
    b" \t\r\n {} \n",
    b"\xef\xbb\xbf{}",
    '{"model": "m"}'.encode("utf-16"),
    b'{"n": [1, 2.0, true, null, "\\u0000"]}',
]


@pytest.mark.parametrize("body", [*BAD, *ODD])
def test_a_body_means_what_the_standard_library_reads_in_it(body: bytes) -> None:
    try:
        wanted = json.loads(body)
    except (ValueError, RecursionError):
        assert parse(CHAT, [body]).error
        return
    assert repr(_decoded(body)) == repr(wanted)


@pytest.mark.parametrize("ids", [[-1], [1 << 40], [1, "a"], [1.5], [[1, None]], {"a": 1}, 7])
def test_ids_that_are_none_are_an_error(ids: Any) -> None:
    assert parse(b"/v1/completions", [json.dumps({"prompt": ids}).encode()]).error


def test_no_depth_makes_it_raise() -> None:
    """Some depths can be read and not be written again."""
    for depth in range(900, 1010):
        nested = b"[" * depth + b"]" * depth
        body = b'{"model":"m","prompt":"x","chat_template_kwargs":' + nested + b"}"
        parsed = parse(b"/v1/completions", [body])
        assert parsed.error is not None or parsed.canonical_bytes == 1


def test_a_models_name_of_any_length_is_not_kept() -> None:
    parse(b"/v1/completions", [json.dumps({"model": "m" * 1_000_000, "prompt": "x"}).encode()])
    assert sum(len(model) for model, _ in prefix._seeds) < 1_000_000


@pytest.mark.parametrize("value", [b"1", b"[]", b'{"role":"user"}', b"NaN"])
def test_a_body_of_countless_values_is_left_unread(value: bytes) -> None:
    """Its reading would hold up every stream."""
    many = b",".join([value] * (VALUES_MAX + 2))
    parsed = parse(b"/v1/completions", [b'{"model":"m","prompt":[' + many + b"]}"])
    assert parsed.error is not None and f"{VALUES_MAX} values" in parsed.error


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"":', b"}")])
def test_values_within_each_other_are_countless_too(opened: bytes, closed: bytes) -> None:
    """24 MB of lists 150 deep take ten seconds, a gigabyte, and but 80,000 commas."""
    nested = opened * 150 + b"0" + closed * 150
    many = b",".join([nested] * (VALUES_MAX // 150 + 1))
    parsed = parse(b"/v1/completions", [b'{"model":"m","prompt":"x","more":[' + many + b"]}"])
    assert parsed.error is not None and f"{VALUES_MAX} values" in parsed.error


def test_a_million_token_ids_are_read() -> None:
    many = b",".join([b"123456"] * (1 << 20))
    assert parse(b"/v1/completions", [b'{"prompt":[' + many + b"]}"]).token_count == 1 << 20


def test_lone_surrogates_do_not_matter() -> None:
    assert chat(user("\ud800" * 600)).ask_blocks


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
NAMES = ["messages", "model", "tools", "stream", "cache_salt", "system", "max_tokens", "input"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.sampled_from(["chat/completions", "m"]))
def test_no_json_object_makes_it_raise(body: dict[str, Any], path: str) -> None:
    parsed = parse(b"/v1/" + path.encode(), [json.dumps(body).encode()])
    assert ask_of(parsed).prompt_tokens >= 1


@given(JSON, st.integers(0, 400), st.binary(min_size=1, max_size=2))
def test_a_damaged_body_means_what_the_standard_library_reads_in_it(
    value: Any, place: int, damage: bytes
) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    place %= len(text) + 1
    test_a_body_means_what_the_standard_library_reads_in_it(
        b'{"n": ' + text[:place] + damage + text[place + 1 :] + b"}"
    )


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=900)), min_size=1)
)
def test_every_turn_extends_the_chain_of_the_turns_before(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    whole = chat(*messages)
    for n in range(1, len(messages)):
        before = chat(*messages[:n])
        assert whole.ask_blocks[: blocks_of(before)] == before.ask_blocks


FILE = b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n'


@pytest.mark.parametrize(
    "part,model",
    [
        (b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper/x\r\n', "whisper/x"),
        (b'content-disposition: form-data; name="model"\r\nx: y\r\n\r\nw\r\n', "w"),
        (b'content-disposition: form-data; name="x"; filename="model"\r\n\r\nw\r\n', ""),
        (b'content-disposition: form-data; name="model"\r\n\r\n' + b"w" * 300 + b"\r\n", ""),
        (b'content-disposition: form-data; name="model"', ""),
        (b'content-disposition: form-data; name="models"\r\n\r\nw\r\n', ""),
        (b'content-disposition: form-data; name="model"; filename="a"\r\n\r\nw\r\n', ""),
    ],
)
def test_a_form_names_its_model_too(part: bytes, model: str) -> None:
    for parts in ((part, FILE), (FILE, part)):
        body = b"--b\r\n" + b"--b\r\n".join(parts) + b"--b--\r\n"
        assert model_of([body[:50], body[50:]]) == model
