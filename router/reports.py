"""Reports: what the end of a replica's answer says about the request's tokens. Pure.

Returns the `Usage` in the last of an answer's bytes, whether it is one JSON object or a stream of
events; None where there is none (a stream has one only if its client asked for it). The rest of an
answer is not parsed.
"""

from __future__ import annotations

import json

from router.asks import Usage

_COMPACT, _SPACED = b'"usage":{', b'"usage": {'
"""Written compactly, as vLLM does, or not. In a stream most say null and are not looked at."""
_DECODER = json.JSONDecoder()
TEXT_BYTES_MAX = 2048  # a usage object has a few hundred


def usage_of(tail: bytes) -> Usage | None:
    """The last complete usage object in `tail`."""
    end = len(tail)
    while True:
        compact, spaced = tail.rfind(_COMPACT, 0, end), tail.rfind(_SPACED, 0, end)
        at = compact if compact > spaced else spaced
        if at < 0:
            return None
        begin = tail.index(b"{", at)
        usage = _read(tail[begin : begin + TEXT_BYTES_MAX].decode("latin-1"))
        if usage is not None:
            return usage
        end = at


def _read(text: str) -> Usage | None:
    try:
        fields, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None  # cut off, or the word stood in generated text
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt = fields.get("prompt_tokens", fields.get("input_tokens"))
    completion = fields.get("completion_tokens", fields.get("output_tokens"))
    if _count(prompt) is None:
        return None
    return Usage(_count(prompt), _count(cached), _count(completion))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 40 else None
