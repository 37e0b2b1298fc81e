"""What is said of a fleet that comes up, and what is cleared away of one that was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench.demo.processes import Session
from launch.head import Phase, Progress, welcome
from launch.leftovers import OWNER, clear_dead, make_scratch
from launch.site import Site

SITE = Site(model="m", namespace="/kv", logs="/logs")


def test_progress_is_said_at_intervals_until_all_are_ready() -> None:
    progress = Progress(2, 600.0, 0.0)
    assert progress.saw(0, 10.0) == (Phase.STARTING, [])
    assert progress.saw(1, 31.0) == (Phase.STARTING, ["1 of 2 replicas ready after 31 s"])
    assert progress.saw(1, 40.0) == (Phase.STARTING, [])
    assert progress.saw(2, 55.0) == (Phase.UP, ["2 of 2 replicas ready after 55 s"])


def test_after_the_time_for_it_a_fleet_goes_on_with_what_there_is() -> None:
    phase, lines = Progress(4, 600.0, 0.0).saw(3, 601.0)
    assert phase is Phase.UP and lines[0].startswith("only 3 of 4 replicas")


def test_where_nothing_became_ready_there_is_no_fleet() -> None:
    assert Progress(4, 600.0, 0.0).saw(0, 601.0)[0] is Phase.HOPELESS


def test_the_welcome_names_url_tunnel_logs_and_end() -> None:
    text = "\n".join(welcome("10.0.0.1", 9000, SITE))
    for said in ("http://10.0.0.1:9000/v1", "-L 9000:10.0.0.1:9000", "/logs", "--batch"):
        assert said in text


def test_a_scratch_folder_of_the_dead_is_removed_and_that_of_the_living_stays(
    tmp_path: Path,
) -> None:
    living = make_scratch(tmp_path)
    dead = tmp_path / "sfs-dead"
    dead.mkdir()
    here = Session.led_by(os.getpid())
    (dead / OWNER).write_text(json.dumps([here.sid, here.start_ticks - 1]))  # a reused pid
    assert clear_dead(tmp_path) == [dead]
    assert list(tmp_path.iterdir()) == [living]


def test_a_folder_that_names_no_owner_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sfs-other").mkdir()
    assert clear_dead(tmp_path) == [] and (tmp_path / "sfs-other").exists()
