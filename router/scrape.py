"""Scrape: the few numbers the router wants from the text of a vLLM replica's /metrics.

Returns a `Scraped`; a number the page does not show is None, and a page with none of them (another
server than vLLM) gives None for all. Series of one name (an engine each, where one server runs
several) are added up, shares are averaged. Pure: bytes in, values out. A page has hundreds of kB
and the event loop is shared with streams, so wanted lines are picked out by one regular expression
rather than everything parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WANTED = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc"
    rb"|external_prefix_cache_hits_total|external_prefix_cache_queries_total"
    rb"|prefix_cache_hits_total|prefix_cache_queries_total|cache_config_info)"
    rb"(?:\{([^\n]*)\})? ([^ \n]+)",
    re.MULTILINE,
)
NUMBER_MAX = 1e15
"""More is no count of requests or tokens; what is made of these stays within a float's."""
DIGITS_MAX = 15
_LABEL = re.compile(rb'(?:^|,) *([a-z_]+)="((?:[^"\\]|\\.)*)"')
"""Tried where a label may begin only: elsewhere a long line that is none takes the square of it."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """One look at a replica."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    """Share of the GPU's KV blocks in use, 0 to 1."""
    gpu_blocks: int | None = None
    block_tokens: int | None = None
    local_hit_tokens: int | None = None
    local_query_tokens: int | None = None
    external_hit_tokens: int | None = None
    """Since the replica started: prompt tokens loaded through the connector."""
    external_query_tokens: int | None = None


def scraped(page: bytes) -> Scraped:
    """What a /metrics page says."""
    values: dict[bytes, list[float]] = {}
    blocks: list[int] = []
    block_tokens = None
    for name, labels, text in _WANTED.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue  # not a number: as good as not there
        if name == b"cache_config_info":
            known = dict(_LABEL.findall(labels))
            blocks.append(_whole(known.get(b"num_gpu_blocks")) or 0)
            block_tokens = _whole(known.get(b"block_size")) or block_tokens
        elif 0.0 <= value <= NUMBER_MAX:  # not NaN either
            values.setdefault(name, []).append(value)

    def total(name: bytes) -> int | None:
        return int(sum(values[name])) if name in values else None

    usage = values.get(b"kv_cache_usage_perc") or values.get(b"gpu_cache_usage_perc")
    return Scraped(
        waiting=total(b"num_requests_waiting"),
        running=total(b"num_requests_running"),
        kv_usage=sum(usage) / len(usage) if usage else None,
        gpu_blocks=sum(blocks) or None,
        block_tokens=block_tokens,
        local_hit_tokens=total(b"prefix_cache_hits_total"),
        local_query_tokens=total(b"prefix_cache_queries_total"),
        external_hit_tokens=total(b"external_prefix_cache_hits_total"),
        external_query_tokens=total(b"external_prefix_cache_queries_total"),
    )


def _whole(text: bytes | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) <= DIGITS_MAX else None
