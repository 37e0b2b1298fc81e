"""What the demo does with two replicas, and what each step must show.

Each step sends one prompt through the router to one replica and compares what happened with what
had to happen: where the tokens' KV came from (the engine's own counters), which greedy tokens came
out (against a run that shared nothing), which file-system operations it took. `Row.failures` says
in words what did not agree; the demo and the tests both judge by it.

Must not know: how replicas are started, how rows are shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.demo.client import Completion, Metrics
from bench.demo.expect import Expected, Ledger
from bench.demo.fleet import FleetError, Replica, tail
from bench.demo.front import Front
from bench.demo.operations import (
    USUAL,
    Sizes,
    load_budget,
    over_budget,
    read_operations,
    sizes_of,
    store_budget,
)
from bench.demo.prompts import tokens

OUTPUT_TOKENS = 16
SETTLE_SECONDS = 60.0  # For stores and counters to be done; a loaded machine is slow.
CATALOG_GAUGE = "sharedfs_catalog_chunks"
PACKS_COUNTER = "sharedfs_packs_stored"
AUDITS_COUNTER = "sharedfs_audits"
STORED_COUNTER = "lmcache_mp_l2_store_completed_objects"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each kind of step to run; the tests use a smaller one."""

    one_way_tokens: tuple[int, ...] = (4000, 4097)
    other_way_tokens: tuple[int, ...] = (4050, 3900)
    turns: int = 4
    first_turn_tokens: int = 2000
    later_turn_tokens: int = 600
    half_tokens: int = 4000
    seed: str = "demo"
    chunk_bytes: int = 4 << 20  # The demo model's: 256 tokens of 16 KiB.


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    label: str
    replica: str
    prompt_tokens: int
    ttft_cold_seconds: float
    ttft_seconds: float
    reloaded_tokens: int
    expected: Expected
    tokens_equal: bool
    operations: Counter[str] | None
    operations_allowed: Counter[str]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and what changed on its replica while it ran and stored."""

    completion: Completion
    expected: Expected
    reloaded_tokens: int
    local_tokens: int
    operations: Counter[str] | None
    packs_stored: int
    audits: int


@dataclass(slots=True)
class Scenario:
    """Runs the steps one after the other on replicas that answer. `say` hears what is going on."""

    first: Replica
    second: Replica
    plan: Plan
    say: Callable[[str], None]
    front: Front
    ledger: Ledger = field(default_factory=Ledger)
    rows: list[Row] = field(default_factory=list)

    def run(self) -> list[Row]:
        """Returns the rows of all steps; also those, in `rows`, done before an exception."""
        self.warm_up()
        for number, count in enumerate(self.plan.one_way_tokens):
            self.there(self.first, self.second, count, f"one way {number}")
        for number, count in enumerate(self.plan.other_way_tokens):
            self.there(self.second, self.first, count, f"other way {number}")
        if self.plan.turns:
            self.conversation()
        if self.plan.half_tokens:
            self.half_shared()
        return self.rows

    def warm_up(self) -> None:
        """One short prompt each (below a chunk, so nothing is stored): first requests are slow."""
        for replica in (self.first, self.second):
            self.say(f"warming up {replica.name}")
            for length in (100, 200):
                prompt = tokens(f"{self.plan.seed}/warm/{replica.name}/{length}", length)
                self.front.complete_on(replica, prompt, tokens_max=4)

    def there(self, writer: Replica, reader: Replica, count: int, draw: str) -> None:
        """A prompt to one replica, then the same to the other."""
        prompt = tokens(f"{self.plan.seed}/{draw}", count)
        label = f"{writer.name} then {reader.name}"
        self.say(f"{label}: {count} tokens to {writer.name}, which has to compute them")
        cold = self.ask(writer, prompt)
        self.wait_visible(writer, reader)
        self.say(f"{label}: the same to {reader.name}")
        warm = self.ask(reader, prompt)
        self._add(label, reader, prompt, warm, cold, cold.packs_stored)

    def conversation(self) -> None:
        """Turns that alternate between the replicas, each prompt holding all turns before."""
        history: list[int] = []
        packs = 0
        speakers = (self.first, self.second)
        for turn in range(self.plan.turns):
            replica, other = speakers[turn % 2], speakers[(turn + 1) % 2]
            new = self.plan.later_turn_tokens if turn else self.plan.first_turn_tokens
            history += tokens(f"{self.plan.seed}/turn {turn}", new)
            label = f"turn {turn + 1} on {replica.name}"
            self.say(f"conversation: {label}, {len(history)} tokens")
            warm = self.ask(replica, history)
            self.say(f"conversation: {label} once more, sharing nothing, to compare with")
            cold = self.ask(replica, history, salt=f"{self.plan.seed}.cold.{turn}")
            self._add(label, replica, history, warm, cold, packs)
            packs += warm.packs_stored
            history += warm.completion.tokens
            self.wait_visible(replica, other)

    def half_shared(self) -> None:
        """A prompt of which the other replica has stored only the first half."""
        half = self.plan.half_tokens // 2
        head = tokens(f"{self.plan.seed}/half head", half)
        stored = head + tokens(f"{self.plan.seed}/half stored", half)
        asked = head + tokens(f"{self.plan.seed}/half asked", half)
        label = f"first half, from {self.first.name}"
        self.say(f"{label}: {len(stored)} tokens to {self.first.name}")
        other = self.ask(self.first, stored)
        self.wait_visible(self.first, self.second)
        self.say(f"{label}: a prompt with the same {half} first tokens to {self.second.name}")
        warm = self.ask(self.second, asked)
        cold = self.ask(self.second, asked, salt=f"{self.plan.seed}.cold.half")
        self._add(label, self.second, asked, warm, cold, other.packs_stored)

    def ask(self, replica: Replica, prompt: Sequence[int], salt: str | None = None) -> Answer:
        """Sends a prompt, waits until its chunks are stored, returns what changed meanwhile."""
        expected = self.ledger.expect(replica.name, prompt, salt)
        engine, server = replica.engine_metrics(), replica.server_metrics()
        completion = self.front.complete_on(
            replica, prompt, tokens_max=OUTPUT_TOKENS, cache_salt=salt
        )
        after = wait_until(
            replica.engine_metrics,
            lambda now: _prompt_tokens(now) - _prompt_tokens(engine) >= len(prompt),
            f"{replica.name}'s engine does not count the prompt",
            replica,
        )
        done = wait_until(
            replica.server_metrics,
            lambda now: _stored(now) - _stored(server) >= expected.chunks_new,
            f"{replica.name} does not store {expected.chunks_new} new chunks",
            replica,
        )
        self.ledger.record(replica.name, prompt, completion.tokens, salt)
        used, before = read_operations(done), read_operations(server)
        return Answer(
            completion,
            expected,
            reloaded_tokens=_by_source(after, engine, "external_kv_transfer"),
            local_tokens=_by_source(after, engine, "local_cache_hit"),
            operations=None if used is None else used - (before or Counter()),
            packs_stored=_rise(PACKS_COUNTER, server, done),
            audits=_rise(AUDITS_COUNTER, server, done),
        )

    def wait_visible(self, writer: Replica, reader: Replica) -> None:
        """Waits until the reader's catalog is as full as the writer's: one refresh, 1-2 s."""
        wanted = writer.server_metrics().total(CATALOG_GAUGE)
        wait_until(
            reader.server_metrics,
            lambda now: now.total(CATALOG_GAUGE) >= wanted,
            f"{reader.name} does not find what {writer.name} stored",
            reader,
        )

    def _add(
        self,
        label: str,
        replica: Replica,
        prompt: Sequence[int],
        warm: Answer,
        cold: Answer,
        packs_before: int,
    ) -> None:
        sizes = sizes_of(replica.server_metrics())
        allowed = budget(warm, packs_before, self.plan.chunk_bytes, sizes)
        row = Row(
            label=label,
            replica=replica.name,
            prompt_tokens=len(prompt),
            ttft_cold_seconds=cold.completion.ttft_seconds,
            ttft_seconds=warm.completion.ttft_seconds,
            reloaded_tokens=warm.reloaded_tokens,
            expected=warm.expected,
            tokens_equal=warm.completion.tokens == cold.completion.tokens,
            operations=warm.operations,
            operations_allowed=allowed,
            failures=tuple(judge(warm, cold, allowed)),
        )
        self.rows.append(row)
        for failure in row.failures:
            self.say(f"FAILED: {label}: {failure}")


def budget(
    answer: Answer, packs_before: int, chunk_bytes: int, sizes: Sizes = USUAL
) -> Counter[str]:
    """Returns what one request may do: its load, its store, and the audits that met it.

    `packs_before` is how many packs the prompt's stored prefix was written as.
    """
    load = load_budget(packs_before, answer.expected.chunks_loaded, chunk_bytes, sizes)
    new = answer.expected.chunks_new
    store = store_budget(answer.packs_stored, new, chunk_bytes, sizes)
    return load + store + load_budget(answer.audits, answer.audits, chunk_bytes)


def judge(warm: Answer, cold: Answer, allowed: Counter[str]) -> list[str]:
    """Returns one sentence for each thing that is not as it had to be."""
    failures = []
    if warm.completion.tokens != cold.completion.tokens:
        failures.append(
            f"greedy tokens differ: {list(warm.completion.tokens)} with reuse, "
            f"{list(cold.completion.tokens)} cold"
        )
    if warm.reloaded_tokens != warm.expected.reloaded_tokens:
        failures.append(
            f"{warm.reloaded_tokens} tokens reloaded, {warm.expected.reloaded_tokens} expected"
        )
    if cold.reloaded_tokens != 0:
        failures.append(f"the cold run reloaded {cold.reloaded_tokens} tokens")
    if warm.operations is not None:
        failures += over_budget(warm.operations, allowed)
        if warm.expected.chunks_loaded and not warm.operations["read"]:
            failures.append(f"no read on packs counted for {warm.expected.chunks_loaded} chunks")
    return failures


def wait_until(
    read: Callable[[], Metrics],
    done: Callable[[Metrics], bool],
    complaint: str,
    replica: Replica,
    seconds: float = SETTLE_SECONDS,
) -> Metrics:
    """Returns the first metrics page that satisfies `done`; FleetError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        page = read()
        if done(page):
            return page
        if time.monotonic() > deadline:
            part = "server" if "server" in replica.pids else "engine"
            raise FleetError(f"{complaint}\n{tail(replica.log_path(part))}")
        replica.check_alive()
        time.sleep(0.05)


def _prompt_tokens(page: Metrics) -> float:
    return page.total("vllm:prompt_tokens_by_source_total")


def _by_source(after: Metrics, before: Metrics, source: str) -> int:
    name = "vllm:prompt_tokens_by_source_total"
    return round(after.total(name, source=source) - before.total(name, source=source))


def _stored(page: Metrics) -> float:
    return sum(
        s.value
        for s in page.samples
        if s.name.startswith(STORED_COUNTER) and s.name.endswith("_total")
    )


def _rise(name: str, before: Metrics, after: Metrics) -> int:
    return round(after.total(name) - before.total(name))
