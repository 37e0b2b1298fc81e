"""Replicas by name: those whose names resolve serve, whatever the name server does about others."""

from __future__ import annotations

import threading
from collections import Counter

from router.relay.resolver import Resolver
from tests.router.service.fakes import replicas, router, until

SLOW = 40
"""More than any shared pool of threads has: uvloop's has 4."""


def test_names_that_are_never_answered_take_no_other_replica_away() -> None:
    asked: Counter[str] = Counter()
    end = threading.Event()

    def look_up(name: str) -> list[str]:
        asked[name] += 1
        if name.startswith("slow"):
            end.wait()
        return ["127.0.0.1"]

    slow = [f"http://slow{number}.test:8000" for number in range(SLOW)]
    with replicas(3) as fakes:
        fast = [f"http://fast{n}.test:{fake.server_address[1]}" for n, fake in enumerate(fakes)]
        try:
            with router(*slow, *fast, resolver=Resolver(look_up=look_up)) as running:
                running.wait_ready(3)
                until(lambda: troubled(running.ask("/replicas").json()) == SLOW)
                answers = [running.chat(f"text {number}") for number in range(12)]
                assert {answer.status for answer in answers} == {200}
                assert running.ask("/ready").json()["replicas_ready"] == 3
        finally:
            end.set()
    assert {asked[name] for name in asked if name.startswith("slow")} == {1}


def troubled(page: dict[str, list[dict[str, str]]]) -> int:
    """Replicas found down because nobody says where they are."""
    return sum("cannot resolve slow" in row["trouble"] for row in page["replicas"])
