"""The page at `/`, in a real headless browser that can reach nothing but the router."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.router.service.browser import Browser, browser, missing
from tests.router.service.fakes import Running, replicas, router

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"needs Debian's {' and '.join(missing())} (apt-get install)"
)

FIRST = 'document.body.dataset.looks >= "1"'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as session:
        yield session


@pytest.fixture
def served() -> Iterator[Running]:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        yield running


def opened(chromium: Browser, running: Running) -> None:
    chromium.open(f"http://127.0.0.1:{running.port}/")
    chromium.wait(FIRST)


def rows(chromium: Browser, table: str) -> list[list[str]]:
    found: list[list[str]] = chromium.run(
        f"return [...document.querySelectorAll('#{table} tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def test_it_shows_every_replica_and_every_decision_with_its_reason(
    chromium: Browser, served: Running
) -> None:
    chosen = [served.chat(f"question {number} " * 300).replica for number in range(5)]
    opened(chromium, served)
    assert len(rows(chromium, "replicas")) == 2
    assert {row[1] for row in rows(chromium, "replicas")} == {"ready"}
    decisions = rows(chromium, "decisions")
    assert [row[4] for row in decisions] == chosen[::-1]
    assert {row[9] for row in decisions} == {"answered"}
    assert all(float(row[6]) > 0 and float(row[8]) > 0 for row in decisions)
    parts = "document.querySelectorAll('#decisions tbody tr:first-child svg rect').length"
    assert chromium.run(f"return {parts}") == 4


def test_it_plots_load_waiting_hits_and_ttft(chromium: Browser, served: Running) -> None:
    for number in range(3):
        served.chat("the same beginning " * 200 + str(number))
    opened(chromium, served)
    drawn = {
        place: chromium.run(f"return document.querySelectorAll('#{place} {shape}').length")
        for place, shape in
        (("load", "path"), ("pending", "path"), ("hits", "rect"), ("ttft", "path"))
    }  # fmt: skip
    assert drawn["load"] == drawn["pending"] == drawn["ttft"] == 2 and drawn["hits"] >= 2


def test_it_follows_what_changes(chromium: Browser, served: Running) -> None:
    opened(chromium, served)
    name = rows(chromium, "replicas")[0][0]
    served.ask(f"/replicas/{name}/drain", method="POST")
    chromium.wait("document.querySelectorAll('#replicas .draining').length == 1")
    assert rows(chromium, "replicas")[0][1] == "draining"


def test_it_needs_nothing_from_elsewhere_and_complains_of_nothing(
    chromium: Browser, served: Running
) -> None:
    chromium.complaints()
    opened(chromium, served)
    origins = chromium.run(
        "return [...new Set(performance.getEntriesByType('resource')"
        ".map(entry => new URL(entry.name).origin))]"
    )
    assert origins == [f"http://127.0.0.1:{served.port}"]
    assert chromium.complaints() == []


def test_names_are_text_and_never_markup(chromium: Browser, served: Running) -> None:
    served.chat("hello", model="<img src=x onerror=document.title=1><b>m</b>")
    opened(chromium, served)
    assert "<b>m</b>" in rows(chromium, "decisions")[0][1]
    assert chromium.run("return document.querySelectorAll('table img, table b').length") == 0


def test_it_fits_a_narrow_window(chromium: Browser, served: Running) -> None:
    served.chat("hello")
    opened(chromium, served)
    wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert chromium.run(f"return {wider}") is False
    if folder := os.environ.get("SHAREDFS_SCREENSHOTS"):
        Path(folder, "page.png").write_bytes(chromium.screenshot())
