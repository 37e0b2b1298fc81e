"""What the demo expects and how it judges: ledger, budgets, verdicts, choice of namespace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.demo import namespace
from bench.demo.client import Completion, parse_metrics
from bench.demo.expect import Expected, Ledger
from bench.demo.operations import load_budget, over_budget, read_operations, store_budget
from bench.demo.prompts import FIRST_TOKEN, VOCABULARY, tokens
from bench.demo.scenario import Answer, budget, judge

MIB = 1 << 20


def test_a_fresh_prompt_is_computed_whole() -> None:
    expected = Ledger().expect("A", tokens("p", 4000))
    assert expected == Expected(0, 0, 4000, chunks_loaded=0, chunks_new=15)


def test_a_prompt_stored_elsewhere_reloads_all_whole_chunks() -> None:
    ledger, prompt = Ledger(), tokens("p", 4000)
    ledger.record("A", prompt, (9, 9))
    assert ledger.expect("B", prompt) == Expected(0, 3840, 160, chunks_loaded=15, chunks_new=0)


def test_the_last_token_is_always_computed() -> None:
    ledger, prompt = Ledger(), tokens("p", 512)
    ledger.record("A", prompt, ())
    expected = ledger.expect("B", prompt)
    assert (expected.reloaded_tokens, expected.computed_tokens) == (511, 1)


def test_the_engines_own_blocks_are_not_reloaded_again() -> None:
    ledger, first = Ledger(), tokens("p", 2000)
    ledger.record("A", first, tokens("out", 16))
    second = (*first, *tokens("out", 16), *tokens("q", 600))
    ledger.record("B", second, ())
    expected = ledger.expect("A", (*second, 5))
    assert expected.local_tokens == 2015 // 128 * 128
    assert expected.reloaded_tokens == 2560 - 1920
    assert expected.chunks_loaded == 3  # A's server holds the seven that A stored.


def test_what_a_server_only_loaded_it_loads_again() -> None:
    ledger, prompt = Ledger(), tokens("p", 600)
    ledger.record("A", prompt, ())
    ledger.record("B", prompt, ())
    assert ledger.expect("B", prompt).chunks_loaded == 2
    assert ledger.expect("A", prompt).chunks_loaded == 0


def test_half_a_shared_prompt_reloads_the_shared_chunks_only() -> None:
    ledger, head = Ledger(), tokens("head", 2000)
    ledger.record("A", head + tokens("x", 2000), ())
    expected = ledger.expect("B", head + tokens("y", 2000))
    assert (expected.reloaded_tokens, expected.chunks_new) == (1792, 8)


def test_another_salt_shares_nothing() -> None:
    ledger, prompt = Ledger(), tokens("p", 1000)
    ledger.record("A", prompt, (), salt="one")
    assert ledger.expect("A", prompt, salt="two").computed_tokens == 1000
    assert ledger.expect("A", prompt).computed_tokens == 1000


def test_prompts_are_fixed_by_their_seed_and_stay_in_the_vocabulary() -> None:
    drawn = tokens("demo", 5000)
    assert drawn[:4] == (2809, 407, 2670, 8)
    assert tokens("demo", 100) == drawn[:100]
    assert min(drawn) >= FIRST_TOKEN and max(drawn) < VOCABULARY
    assert drawn != tokens("other", 5000)


def test_operations_on_packs_are_read_from_the_metrics_page() -> None:
    page = parse_metrics(
        'sharedfs_pack_operations{namespace="/ns",adapter="1",operation="read"} 15.0\n'
        'sharedfs_operations{namespace="/ns",adapter="1",operation="read"} 99.0\n'
    )
    assert read_operations(page) == Counter(read=15)
    assert read_operations(parse_metrics("lmcache_mp_l2_store_total 1.0\n")) is None


def test_operations_before_the_first_request_are_none_not_unknown() -> None:
    assert read_operations(parse_metrics("sharedfs_catalog_chunks 0.0\n")) == Counter()


def test_a_load_may_open_each_pack_once_and_read_each_piece_once() -> None:
    assert load_budget(2, 15, 4 * MIB) == Counter(open=2, read=15)
    assert load_budget(1, 2, 9 * MIB) == Counter(open=1, read=6)
    assert load_budget(2, 0, 4 * MIB) == Counter()


def test_a_store_may_create_write_and_close() -> None:
    assert store_budget(2, 15, 4 * MIB) == Counter(create=2, write=19, close=2)


def test_what_is_over_the_budget_is_named() -> None:
    used = Counter(open=1, read=16, stat=1)
    assert over_budget(used, Counter(open=1, read=15)) == [
        "16 read on packs where 15 are allowed",
        "1 stat on packs where 0 are allowed",
    ]


def answer(tokens_: tuple[int, ...] = (1, 2), reloaded: int = 0) -> Answer:
    completion = Completion(tokens_, (), 0.5, 1.0)
    expected = Expected(0, 512, 100, chunks_loaded=2, chunks_new=0)
    return Answer(completion, expected, reloaded, 0, Counter(open=1, read=2), 0, 0)


def test_a_reload_as_expected_with_equal_tokens_has_no_failure() -> None:
    warm = answer(reloaded=512)
    assert judge(warm, answer(), budget(warm, 1, 4 * MIB)) == []


def test_differing_tokens_a_missing_reload_and_a_warm_cold_run_are_failures() -> None:
    warm = answer((1, 3), reloaded=256)
    found = judge(warm, answer(reloaded=512), budget(warm, 1, 4 * MIB))
    assert [text.split(":")[0] for text in found] == [
        "greedy tokens differ",
        "256 tokens reloaded, 512 expected",
        "the cold run reloaded 512 tokens",
    ]


def test_one_read_too_many_is_a_failure() -> None:
    warm = replace(answer(reloaded=512), operations=Counter(open=1, read=3))
    found = judge(warm, answer(), budget(warm, 1, 4 * MIB))
    assert found == ["3 read on packs where 2 are allowed"]


def test_a_reload_without_a_counted_read_is_a_failure() -> None:
    warm = replace(answer(reloaded=512), operations=Counter())
    found = judge(warm, answer(), budget(warm, 1, 4 * MIB))
    assert found == ["no read on packs counted for 2 chunks"]


def test_operations_that_are_not_counted_are_not_judged() -> None:
    warm = replace(answer(reloaded=512), operations=None)
    assert judge(warm, answer(), Counter()) == []


def test_the_default_namespace_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/old").touch()
    choice = namespace.choose(None, tmp_path / "ns")
    assert list(choice.root.iterdir()) == []
    assert not choice.may_hold_prompts


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    choice = namespace.choose(str(tmp_path), tmp_path / "default")
    assert choice.root.parent == tmp_path
    assert choice.root.name.startswith("sharedfs-demo-")
    assert (tmp_path / "precious").read_text() == "data"


def test_an_existing_namespace_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / namespace.DESCRIPTOR).write_text("{}")
    (tmp_path / "packs").mkdir()
    choice = namespace.choose(str(tmp_path), tmp_path / "default")
    assert choice.root == tmp_path
    assert choice.may_hold_prompts
    assert (tmp_path / "packs").is_dir()


def test_an_empty_or_missing_directory_becomes_the_namespace(tmp_path: Path) -> None:
    given = tmp_path / "a/b"
    choice = namespace.choose(str(given), tmp_path / "default")
    assert (choice.root, choice.may_hold_prompts) == (given, False)
    assert given.is_dir()


def test_contents_are_what_the_tool_says(tmp_path: Path) -> None:
    root = tmp_path / "ns"
    namespace.initialise(root)
    assert (root / namespace.DESCRIPTOR).is_file()
    contents = namespace.contents(root)
    assert (contents.packs, contents.chunks, contents.live_bytes) == (0, 0, 0)


def test_a_namespace_that_cannot_be_read_is_an_error_with_the_tools_words(tmp_path: Path) -> None:
    with pytest.raises(namespace.NamespaceFailed, match="nowhere"):
        namespace.contents(tmp_path / "nowhere")
