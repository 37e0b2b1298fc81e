"""Conversations whose turns the router places as it likes, and a replica that dies meanwhile.

Several conversations go on side by side. In the second turn, all requests sent and none answered
yet, the busiest replica's engine is killed: the router has to try those requests elsewhere, and
every one that had not begun to stream has to be answered all the same. Afterwards each answer is
compared with one that shared nothing.

Must not know: how replicas are started, how rows are shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from bench.demo.client import Completion, RequestFailed
from bench.demo.fleet import FleetError, Replica
from bench.demo.front import Front
from bench.demo.prompts import tokens

OUTPUT_TOKENS = 16
DISPATCH_SECONDS = 20.0
RETRIES = re.compile(r"(?:^|;)retries=(\d+)")


@dataclass(frozen=True, slots=True)
class Talk:
    """How many conversations, and the new tokens of each turn; the second outlasts the kill."""

    conversations: int = 4
    turn_tokens: tuple[int, ...] = (600, 2000, 300)
    kill_in_turn: int = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """One request the router placed, and what became of it."""

    label: str
    prompt_tokens: int
    replica: str
    reason: str
    retries: int
    ttft_seconds: float
    tokens_equal: bool | None
    """None: there was no answer."""
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Turn:
    label: str
    prompt: tuple[int, ...]
    answer: Completion | None
    trouble: str = ""
    had_begun: bool = False


@dataclass(slots=True)
class Conversations:
    """Runs them on replicas that answer. One of the replicas is dead afterwards."""

    front: Front
    talk: Talk
    seed: str
    say: Callable[[str], None]
    killed: Replica | None = None
    rows: list[Decided] = field(default_factory=list)

    def run(self) -> list[Decided]:
        """One row for each turn of each conversation."""
        self.front.release()
        count = self.talk.conversations
        histories: list[tuple[int, ...]] = [()] * count
        turns: list[_Turn] = []
        with ThreadPoolExecutor(count) as pool:
            for turn, new in enumerate(self.talk.turn_tokens):
                self.say(f"{count} conversations, turn {turn + 1}, placed by the router")
                asked = [
                    history + tokens(f"{self.seed}/talk {number}.{turn}", new)
                    for number, history in enumerate(histories)
                ]
                labels = [f"conversation {number + 1}, turn {turn + 1}" for number in range(count)]
                sent = [pool.submit(self._ask, *pair) for pair in zip(labels, asked, strict=True)]
                if turn == self.talk.kill_in_turn:
                    self._kill_busiest(sent)
                done = [future.result() for future in sent]
                turns += done
                histories = [one.prompt + (one.answer.tokens if one.answer else ()) for one in done]
        self.say(f"asking {len(turns)} times more, sharing nothing, to compare with")
        self.rows = [self._row(number, turn) for number, turn in enumerate(turns)]
        return self.rows

    def _ask(self, label: str, prompt: tuple[int, ...]) -> _Turn:
        try:
            return _Turn(label, prompt, self.front.complete(prompt, tokens_max=OUTPUT_TOKENS))
        except RequestFailed as error:
            return _Turn(label, prompt, None, str(error), error.had_begun)

    def _kill_busiest(self, sent: list[Future[_Turn]]) -> None:
        """Once every request is on a replica; at the latest when one has been answered."""
        deadline = time.monotonic() + DISPATCH_SECONDS
        while True:
            loads = self.front.in_flight()
            if sum(loads.values()) >= len(sent) or any(future.done() for future in sent):
                break
            if time.monotonic() > deadline:
                raise FleetError(f"the router has placed {sum(loads.values())} of {len(sent)}")
            time.sleep(0.01)
        victim = max(self.front.replicas, key=lambda replica: loads[replica.name])
        self.say(f"killing {victim.name}'s engine, with {loads[victim.name]} requests on it")
        victim.stop(parts=("engine",), kill=True)
        self.killed = victim

    def _row(self, number: int, turn: _Turn) -> Decided:
        if turn.answer is None:
            # A stream that broke off cannot be taken back; anything else is a lost request.
            failures = () if turn.had_begun else (f"lost: {turn.trouble}",)
            what = "broke off while streaming" if turn.had_begun else "lost"
            return Decided(turn.label, len(turn.prompt), "-", what, 0, 0.0, None, failures)
        cold = self.front.complete(
            turn.prompt, tokens_max=OUTPUT_TOKENS, cache_salt=f"{self.seed}.talk.{number}"
        )
        is_equal = cold.tokens == turn.answer.tokens
        failures = () if is_equal else (f"greedy tokens differ: {list(turn.answer.tokens)}",)
        return Decided(
            turn.label,
            len(turn.prompt),
            self.front.name_of(turn.answer.replica),
            readable(turn.answer.reason, self.front.name_of),
            retries_in(turn.answer.reason),
            turn.answer.ttft_seconds,
            is_equal,
            failures,
        )


def readable(reason: str, name_of: Callable[[str], str]) -> str:
    """The router's estimate without its zeros, replicas by the demo's names."""
    parts = []
    for part in filter(None, reason.split(";")):
        key, _, value = part.partition("=")
        if key == "runner-up":
            replica, _, total = value.partition(",")
            value = f"{name_of(replica)} {total}".strip()
        if key != "retries" and value != "0.0":
            parts.append(f"{key} {value}")
    return ", ".join(parts)


def retries_in(reason: str) -> int:
    """How often the router moved a request on, from the reason it gave."""
    found = RETRIES.search(reason)
    return int(found.group(1)) if found else 0


def judge(rows: list[Decided], killed: Replica | None) -> list[str]:
    """What is wrong with them as a whole, in sentences."""
    failures = [f"{row.label}: {failure}" for row in rows for failure in row.failures]
    if killed is None:
        return [*failures, "no replica was killed"]
    if not any(row.retries for row in rows) and all(row.tokens_equal is not None for row in rows):
        failures.append(f"{killed.name} was killed, and no request had to be moved on")
    return failures
