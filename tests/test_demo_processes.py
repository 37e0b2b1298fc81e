"""Which processes and segments count as ours. The pure parts of bench.demo.processes."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.demo.processes import (
    ProcStat,
    Session,
    mapped_inodes,
    parse_stat,
    select_members,
    shared_segments,
    stop_sessions,
)

STAT = "42 (a ) b (c) S 1 40 41 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 9876 1 2\n"


def stat(pid: int, session: int, start: int, state: str = "S") -> ProcStat:
    return ProcStat(pid, state, session, start)


def test_a_command_with_brackets_and_spaces_does_not_confuse_the_fields() -> None:
    assert parse_stat(STAT) == ProcStat(pid=42, state="S", session=41, start_ticks=9876)


def test_children_of_a_leader_that_is_gone_are_still_members() -> None:
    assert select_members([Session(10, 100)], [stat(12, 10, 120)]) == [12]


def test_a_session_whose_leaders_pid_was_reused_has_no_members() -> None:
    reused = [stat(10, 10, 500), stat(12, 10, 510)]
    assert select_members([Session(10, 100)], reused) == []


def test_zombies_and_strangers_are_no_members() -> None:
    stats = [stat(10, 10, 100, "Z"), stat(11, 10, 101, "X"), stat(12, 9, 130)]
    assert select_members([Session(10, 100)], stats) == []


def test_a_process_older_than_the_session_is_no_member() -> None:
    assert select_members([Session(10, 100)], [stat(12, 10, 99)]) == []


def test_mapped_files_are_known_by_inode_whatever_the_path_says() -> None:
    maps = (
        "7f00-7f10 rw-s 00000000 00:18 5 /dev/shm/lmcache_kv_42_0\n"
        "7f10-7f20 rw-s 00000000 00:18 6 /dev/shm/sem.x1Yz (deleted)\n"
        "7f20-7f30 r-xp 00000000 00:18 7 /usr/lib/libc.so.6\n"
    )
    assert mapped_inodes(maps) == {5, 6}


def test_a_named_semaphore_is_found_and_removed() -> None:
    """Made under one name and linked to another: the mapping shows the first, deleted."""
    program = (
        "import multiprocessing, os, sys, time; "
        "lock = multiprocessing.get_context('spawn').Lock(); "
        "print('/dev/shm/sem.' + lock._semlock.name.lstrip('/'), flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    path = child.stdout.readline().decode().strip()
    session = Session.led_by(child.pid)
    assert path in shared_segments([child.pid])
    removed = stop_sessions([session], grace_seconds=0.0, reap=child.poll)
    child.communicate()
    assert removed == [path]
    assert not os.path.exists(path)
