"""Canonical bytes: what stands for a request's prompt where no tokenizer is at hand. Pure.

They are what a chat template would render, in the order most templates have (system messages,
tools, the other messages), with control characters between the parts. Requests whose prompts agree
up to some point have canonical bytes that agree up to there. Prompts of token ids are the ids, four
bytes each. An image, or other media, is its digest, repeated to the length of some hundred tokens.

It must not know hashes of blocks, replicas or HTTP. `canonical` raises TypeError, ValueError,
OverflowError, AttributeError or RecursionError for what no engine would take either.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import xxhash

MEDIA_BYTES = 2048
"""What one image counts as, about 500 tokens: engines spend 250 to 2,500 on one."""
MEDIA_MAX = 2048
"""Media of one request that count so; more are their digests alone. A body holds half a million
references to media, of a few bytes each: gigabytes here, else."""
TOKEN_BYTES = 4
"""Canonical bytes of one id in a prompt given as token ids."""

_MEDIA = {
    "image_url": "image_url",
    "input_image": "image_url",
    "audio_url": "audio_url",
    "input_audio": "input_audio",
    "video_url": "video_url",
    "image": "source",
}
"""Type of a content part -> the key its media lie under."""

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Compact text of a JSON value, keys in the order they came: templates keep it, too."""


def canonical(fields: Mapping[str, Any], key: str) -> tuple[bytes, int | None]:
    """The prompt's canonical bytes, and its tokens where those were given."""
    value = fields.get("messages", fields.get(key)) if key == "input" else fields.get(key)
    if key != "prompt" and (key == "messages" or _is_conversation(value)):
        return as_bytes(_conversation(fields, value)), None
    if value is None:
        return b"", None
    if type(value) is str and fields.get("instructions"):  # of /v1/responses
        message = {"role": "user", "content": value}
        return as_bytes(_conversation(fields, [message])), None
    if type(value) is str:
        return as_bytes(value), None
    if type(value) is list and value:
        return _batch(value)
    raise TypeError(f"neither text nor token ids: {type(value).__name__}")


def _is_conversation(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict


def _batch(prompts: list[Any]) -> tuple[bytes, int | None]:
    """Token ids, or several prompts, one after another: the engine prefills them all."""
    if type(prompts[0]) is int:
        return array("I", prompts).tobytes(), len(prompts)
    if type(prompts[0]) is list:
        ids = [token for prompt in prompts for token in prompt]
        return array("I", ids).tobytes(), len(ids)
    return as_bytes("\x1d".join(prompts)), None


def _conversation(fields: Mapping[str, Any], messages: Any) -> str:
    """System text, tools, messages, as templates order them."""
    parts: list[str] = []
    media = count()
    for name in ("instructions", "system"):  # of /v1/responses and of /v1/messages
        if fields.get(name):
            parts += ("\x1e", "system", "\x1f", _text(fields[name], media))
    tools = fields.get("tools")
    tools_due = bool(tools)
    for message in messages or ():
        role = message.get("role") or ""
        if tools_due and role not in ("system", "developer"):
            parts += ("\x1e", "tools", "\x1f", as_json(tools))
            tools_due = False
        parts += ("\x1e", role, "\x1f")
        content = message.get("content")
        parts.append(content if type(content) is str else _text(content, media))
        if len(message) > 2:
            _rest(message, parts)
    if tools_due:
        parts += ("\x1e", "tools", "\x1f", as_json(tools))
    return "".join(parts)


def _rest(message: Mapping[str, Any], parts: list[str]) -> None:
    """What an assistant called or thought, whom a tool answers, and fields unknown here."""
    for name, value in message.items():
        if name not in ("role", "content") and value:
            parts += ("\x1f", name, "\x1f", value if type(value) is str else as_json(value))


def _text(content: Any, media: Iterator[int]) -> str:
    """A message's content as one text: a string, nothing, parts. `media` counts the request's."""
    if type(content) is str:
        return content
    if content is None:
        return ""
    return "".join([_part(part, media) for part in content])


def _part(part: Any, media: Iterator[int]) -> str:
    if type(part) is str:
        return part
    text = part.get("text")
    if type(text) is str:
        return text
    kind = part.get("type")
    found = part.get(_MEDIA[kind]) if kind in _MEDIA else None
    if found is None:
        return as_json(part)
    if type(found) is dict:
        found = found.get("url") or found.get("data") or as_json(found)
    digest = xxhash.xxh3_128_hexdigest(as_bytes(found))
    times = MEDIA_BYTES // len(digest) if next(media) < MEDIA_MAX else 1
    return f"\x1f{kind}\x1f" + digest * times


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON may hold lone surrogates
