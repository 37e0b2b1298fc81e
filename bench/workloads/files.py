"""Files: published data instead of distributions. Given by path; nothing is fetched.

- `hash_ids` traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids).
- ShareGPT (a JSON list of {"conversations": [{"from", "value"}, ...]}): lengths of turns; tokens
  are characters / 4 unless a counter is given.
- BurstGPT (CSV with "Timestamp" in seconds, "Request tokens", "Response tokens"): arrivals and
  lengths. It tells no prefixes, so every request is a first one.

Errors are ValueErrors that name the file and what is wrong with it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from bench.routing.traces import BLOCK_TOKENS, read
from bench.workloads.workload import OUTPUT_TOKEN_SECONDS, Fresh, Request, Workload, in_order

CHARACTERS_PER_TOKEN = 4
SYSTEM_TOKENS = 1024
THINK_SECONDS = 20.0

Count = Callable[[str], int]


def by_characters(text: str) -> int:
    """Tokens of a text, roughly: English has about four characters in one."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def hash_ids(path: Path, *, requests_max: int | None = None) -> Workload:
    """A trace of production requests, replayed as it is."""
    try:
        requests = read(path)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trace with hash_ids: {error!r}") from None
    if not requests:
        raise ValueError(f"{path}: no requests in it")
    kept = requests if requests_max is None else requests[:requests_max]
    return in_order("trace", kept, f"replay of {path.name}", BLOCK_TOKENS)


def sharegpt(
    path: Path,
    arrivals: Iterator[float],
    *,
    conversations_max: int | None = None,
    count: Count = by_characters,
    block_tokens: int = BLOCK_TOKENS,
) -> Workload:
    """Real conversations, beginning at the given times."""
    try:
        entries = json.loads(path.read_text())
        dialogues = [list(_turns(entry["conversations"])) for entry in entries]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not ShareGPT's format: {error!r}") from None
    fresh, requests = Fresh(), list[Request]()
    system = fresh.blocks(SYSTEM_TOKENS, block_tokens)
    for dialogue, began_at in zip(islice(dialogues, conversations_max), arrivals, strict=False):
        at, tokens, blocks = began_at, SYSTEM_TOKENS, list(system)
        for said, answered in dialogue:
            tokens += count(said)
            fresh.extend(blocks, tokens, block_tokens)
            output = count(answered)
            requests.append(Request(at, tokens, output, tuple(blocks)))
            tokens += output
            at += output * OUTPUT_TOKEN_SECONDS + THINK_SECONDS
    if not requests:
        raise ValueError(f"{path}: no conversations in it")
    return in_order("sharegpt", requests, f"conversations of {path.name}", block_tokens)


def burstgpt(
    path: Path, *, requests_max: int | None = None, block_tokens: int = BLOCK_TOKENS
) -> Workload:
    """Real arrivals and lengths; failed requests (no answer) are left out."""
    fresh, requests = Fresh(), list[Request]()
    with path.open(newline="") as lines:
        rows = csv.DictReader(lines)
        try:
            for row in rows:
                prompt, answer = int(row["Request tokens"]), int(row["Response tokens"])
                if prompt <= 0 or answer <= 0:
                    continue
                blocks = tuple(fresh.blocks(prompt, block_tokens))
                requests.append(Request(_time(row["Timestamp"]), prompt, answer, blocks))
                if len(requests) == requests_max:
                    break
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {rows.line_num}: not BurstGPT's format: {error!r}"
            ) from None
    if not requests:
        raise ValueError(f"{path}: no requests with an answer in it")
    first = min(request.at for request in requests)
    moved = [Request(r.at - first, r.prompt_tokens, r.output_tokens, r.blocks) for r in requests]
    return in_order("burstgpt", moved, f"arrivals and lengths of {path.name}", block_tokens)


def _time(text: str) -> float:
    at = float(text)
    if not math.isfinite(at):
        raise ValueError(f"Timestamp {text}")
    return at


def _turns(dialogue: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """What a person said and what was answered; anything else is passed over."""
    said = None
    for part in dialogue:
        who, text = part.get("from", ""), part.get("value", "")
        if type(text) is not str:
            raise TypeError(f"a value that is no text: {type(text).__name__}")
        if who in ("human", "user"):
            said = text
        elif said is not None and who in ("gpt", "assistant", "chatgpt", "bing", "bard"):
            yield said, text
            said = None
