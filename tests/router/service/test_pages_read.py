"""What is read from replicas: their metrics and the end of their answers."""

from __future__ import annotations

import json

import pytest

from router.asks import Usage
from router.reports import usage_of
from router.scrape import Scraped, scraped

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 600.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 512.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="800"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="a\\"b",engine="1",num_gpu_blocks="700"} 1.0
"""


def test_series_of_several_engines_are_added_and_shares_averaged() -> None:
    assert scraped(VLLM) == Scraped(
        waiting=7,
        running=5,
        kv_usage=0.5,
        gpu_blocks=1500,
        block_tokens=16,
        local_hit_tokens=400,
        local_query_tokens=1000,
        external_hit_tokens=512,
        external_query_tokens=600,
    )


@pytest.mark.parametrize(
    "page",
    [b"", b"not metrics", b"vllm:num_requests_running NaN\n", b"vllm:num_requests_running x\n",
     b"other:num_requests_running 3\n", bytes(range(256)) * 10],
)  # fmt: skip
def test_a_page_without_numbers_says_nothing(page: bytes) -> None:
    assert scraped(page) == Scraped()


def test_a_long_line_takes_no_longer_than_its_bytes() -> None:
    """The square of a million would be an hour, in which no stream goes on."""
    assert scraped(b"vllm:cache_config_info{" + b"a" * 1_000_000 + b"} 1.0\n") == Scraped()


def test_blocks_that_are_not_known_yet_are_none() -> None:
    page = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
    assert scraped(page) == Scraped(block_tokens=16)


USAGE = {
    "prompt_tokens": 100,
    "total_tokens": 108,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 96},
}


@pytest.mark.parametrize(
    "tail",
    [
        json.dumps({"choices": [], "usage": USAGE, "kv_transfer_params": None}),
        f'data: {{"usage": null}}\n\ndata: {json.dumps({"usage": USAGE})}\n\ndata: [DONE]\n\n',
        f"6e\r\ndata: {json.dumps({'choices': [], 'usage': USAGE})}\n\n\r\n0\r\n\r\n",
        json.dumps({"usage": USAGE, "text": 'he said "usage": {"prompt_tokens'}),
    ],
)
def test_usage_is_found_at_an_answers_end(tail: str) -> None:
    assert usage_of(tail.encode()) == Usage(100, 96, 8)


def test_without_details_cached_tokens_are_unknown_and_not_zero() -> None:
    assert usage_of(b'{"usage": {"prompt_tokens": 5}}') == Usage(5, None, None)


@pytest.mark.parametrize(
    "tail",
    [b"", b"data: [DONE]", b'"usage": null', b'"usage": {"prompt_tokens": 5', b'"usage"',
     b'{"usage": {"prompt_tokens": -1}}', b'{"usage": {"prompt_tokens": "5"}}', b'"usage": [1]',
     b'"usage":' * 500, b'"usage": ' + b"[" * 2000],
)  # fmt: skip
def test_an_end_without_usage_says_nothing(tail: bytes) -> None:
    assert usage_of(tail) is None


def test_other_names_of_the_same_numbers_are_known() -> None:
    text = (
        b'"usage":{"input_tokens":7,"output_tokens":2,"input_tokens_details":{"cached_tokens":3}}'
    )
    assert usage_of(text) == Usage(7, 3, 2)
