"""Prefix: a request's body read once, and its prompt as a chain of block hashes. Pure.

Block i's hash is xxh3-64 of the block's bytes, seeded with the hash before it: it commits to every
byte before its end. The chain starts from what changes a prompt, or who may reuse it, from its
beginning: the model, the cache salt, a template of the request's own. Good against accidents; who
forges a collision misleads routing decisions and nothing else.

It must not know replicas, or HTTP beyond a path, and raises nothing: a body that is no request is
a `Parsed` with an `error`, for an engine to refuse in its own words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import xxhash
from msgspec import MsgspecError
from msgspec.json import Decoder

from router.asks import Ask
from router.canonical import TOKEN_BYTES, as_bytes, as_json, canonical

BLOCK_BYTES = 1024
"""About 256 tokens of English, as many as a chunk of LMCache: a 128k-token prompt has 500."""
VALUES_MAX = 1_250_000
"""Values in one body, of which the longest prompts of token ids have a million: reading more would
keep every stream waiting, for half a minute where 64 MiB are full of them."""
BLOCKS_MAX = 4096
"""4 MiB of text, about a million tokens: past it a prompt is weighed but not told apart."""
BEFORE_VALUES = (b",", b"[", b"{")
"""Each value but the first has one of these before it, or before its name: also where they nest."""
TOKENS_PER_BYTE = 0.25
"""English text under today's vocabularies; whoever learns better passes it to `ask_of`."""

PROMPTED = {
    b"/v1/chat/completions": "messages",
    b"/v1/completions": "prompt",
    b"/v1/embeddings": "input",
    b"/v1/responses": "input",
    b"/v1/messages": "messages",
    b"/pooling": "input",
    b"/classify": "input",
}
"""Paths whose requests are prefilled, and where their prompt lies."""

_EVERYWHERE = (
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "mm_processor_kwargs",
    "reasoning_effort",
)
"""Fields that change the prompt, or who may reuse it, from its beginning."""
_EVERYWHERE_NAMES = frozenset(_EVERYWHERE)

NO_FIELDS: Mapping[str, Any] = {}
_SEEDS_MAX = 256  # clients may ask for any model, under a name of any length
_MODEL_CHARACTERS_MAX = 256
_seeds: dict[tuple[str, bool], int] = {}
"""Of requests that change nothing from their beginning: most."""

_FORM_MODEL = b' name="model"\r\n'
"""Where a form names its model; a file's name would follow, or begin otherwise."""
_hash = xxhash.xxh3_64_intdigest
_decode = Decoder().decode

_CUT = Struct(f"{BLOCK_BYTES}s")
"""Cuts a prompt into blocks for less than slicing it does."""


@dataclass(init=False, slots=True)
class Parsed:
    """A request's body, read once. Drop it when the request is decided: `fields` is a copy."""

    model: str
    stream: bool
    output_tokens: int | None
    """The smallest limit on generated tokens the request names."""
    ask_blocks: list[int]
    block_bytes: int
    canonical_bytes: int
    token_count: int | None
    """The prompt's tokens where it was given as token ids: exact."""
    wants_usage: bool
    """Whether the answer, as asked for, will end with its usage."""
    affinity: int
    """`prompt_cache_key` where the client sends one, else the first block (or all of less)."""
    fields: Mapping[str, Any]
    """The decoded body."""
    error: str | None
    """Why the body is no request; everything else is then empty."""

    def __init__(
        self,
        model: str = "",
        stream: bool = False,
        output_tokens: int | None = None,
        ask_blocks: list[int] | None = None,
        block_bytes: int = BLOCK_BYTES,
        canonical_bytes: int = 0,
        token_count: int | None = None,
        wants_usage: bool = False,
        affinity: int = 0,
        fields: Mapping[str, Any] = NO_FIELDS,
        error: str | None = None,
    ) -> None:
        self.model = model
        self.stream = stream
        self.output_tokens = output_tokens
        self.ask_blocks = [] if ask_blocks is None else ask_blocks
        self.block_bytes = block_bytes
        self.canonical_bytes = canonical_bytes
        self.token_count = token_count
        self.wants_usage = wants_usage
        self.affinity = affinity
        self.fields = fields
        self.error = error


def parse(
    path: bytes,
    body: Sequence[bytes],
    *,
    block_bytes: int = BLOCK_BYTES,
    blocks_max: int = BLOCKS_MAX,
) -> Parsed:
    """What the body of a request to `path` asks for. Never raises for what a client can send."""
    try:
        fields = _decoded(body[0] if len(body) == 1 else b"".join(body))
    except (ValueError, RecursionError) as error:
        return Parsed(error=f"the body cannot be read as JSON: {error}")
    if type(fields) is not dict:
        return Parsed(error="the body is not a JSON object")
    model = fields.get("model")
    if type(model) is not str:
        model = ""
    stream = fields.get("stream") is True
    key = PROMPTED.get(path.partition(b"?")[0])
    data, token_count = b"", None
    try:
        if key is not None:
            data, token_count = canonical(fields, key)
        seed = _seed(fields, model, token_count is not None)
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        return Parsed(model=model, stream=stream, error=f"{key} is malformed: {error}")
    blocks = chain(data, seed, block_bytes, blocks_max)
    return Parsed(
        model,
        stream,
        _output_tokens(fields),
        blocks,
        block_bytes,
        len(data),
        token_count,
        not stream or _includes_usage(fields),
        _affinity(fields, data, seed, blocks),
        fields,
    )


def model_of(body: Sequence[bytes]) -> str:
    """The model a body names that has no prompt to read, in JSON or, as transcriptions do, in a
    form; empty where it names none, or is neither."""
    if not body or body[0][:64].lstrip()[:1] != b"{":
        return _model_of_form(b"".join(body)) if body and body[0].startswith(b"--") else ""
    try:
        fields = _decoded(b"".join(body))
    except (ValueError, RecursionError):
        return ""
    model = fields.get("model") if type(fields) is dict else None
    return model if type(model) is str else ""


def _model_of_form(body: bytes) -> str:
    """Of multipart/form-data: the text of its field `model`."""
    field = body.find(_FORM_MODEL)  # an upload is long: nothing slower than this
    begin = body.find(b"\r\n\r\n", field) + 4
    end = body.find(b"\r\n", begin)
    if field < 0 or begin < 4 or not begin < end <= begin + _MODEL_CHARACTERS_MAX:
        return ""
    return body[begin:end].decode("utf-8", "replace")


def _decoded(body: bytes) -> Any:
    """The body's JSON. ValueError or RecursionError for what is none, or is too much.

    msgspec reads a fifth of the time; what it refuses the standard library reads again, which
    also takes NaN, lone surrogates and UTF-16, as Python's engines do."""
    if len(body) > VALUES_MAX and sum(map(body.count, BEFORE_VALUES)) > VALUES_MAX:
        raise ValueError(f"more than {VALUES_MAX} values")
    try:
        return _decode(body)
    except (MsgspecError, ValueError, RecursionError):
        return json.loads(body)


def ask_of(parsed: Parsed, tokens_per_byte: float = TOKENS_PER_BYTE) -> Ask:
    """The request as the decision sees it. Prompts of token ids need no estimate."""
    if parsed.token_count is not None:
        tokens, tokens_per_byte = parsed.token_count, 1 / TOKEN_BYTES
    else:
        tokens = math.ceil(parsed.canonical_bytes * tokens_per_byte)
    return Ask(
        parsed.ask_blocks,
        parsed.block_bytes * tokens_per_byte,
        tokens if tokens > 1 else 1,
        parsed.output_tokens,
        parsed.model,
        parsed.affinity,
        None,
        parsed.stream,
    )


def chain(data: bytes, seed: int, block_bytes: int, blocks_max: int) -> list[int]:
    """Hashes of the whole blocks of `data`, each seeded with the one before.

    `Any`: compiled, a hash would be turned into mypyc's own kind of integer and back each time."""
    blocks: list[Any] = []
    last: Any = seed
    end = min(len(data) // block_bytes, blocks_max) * block_bytes
    cut = _CUT if block_bytes == BLOCK_BYTES else Struct(f"{block_bytes}s")
    digest: Any = _hash
    for (block,) in cut.iter_unpack(memoryview(data)[:end]):
        last = digest(block, last)
        blocks.append(last)
    return blocks


def token_seed(adapter: str, cache_salt: str) -> int:
    """What the chain over a prompt's exact token ids starts from: a LoRA adapter's name, or empty
    for the base model, and the cache salt. Engines keep the same apart."""
    return _hash(as_bytes(f"tokens\0{adapter}\0{cache_salt}"))


def _seed(fields: Mapping[str, Any], model: str, is_tokens: bool) -> int:
    """What the chain starts from: equal only where prefixes may be shared at all."""
    if _EVERYWHERE_NAMES.isdisjoint(fields):
        known = _seeds.get((model, is_tokens))
        if known is None:
            known = _hash(as_bytes(f"{model}\0{is_tokens}"))
            if len(model) <= _MODEL_CHARACTERS_MAX:
                if len(_seeds) >= _SEEDS_MAX:
                    _seeds.clear()
                _seeds[model, is_tokens] = known
        return known
    text = f"{model}\0{is_tokens}"
    for name in _EVERYWHERE:
        if name in fields:
            text += f"\0{name}\0{as_json(fields[name])}"
    return _hash(as_bytes(text))


def _affinity(fields: Mapping[str, Any], data: bytes, seed: int, blocks: Sequence[int]) -> int:
    key = fields.get("prompt_cache_key")
    if type(key) is str and key:
        return _hash(as_bytes(key))
    return blocks[0] if blocks else _hash(data, seed)


def _output_tokens(fields: Mapping[str, Any]) -> int | None:
    least: int | None = None
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        limit = fields.get(name)
        if type(limit) is int and limit >= 0 and (least is None or limit < least):
            least = limit
    return least


def _includes_usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options")
    return type(options) is dict and options.get("include_usage") is True
