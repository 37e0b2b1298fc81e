"""Which processes and segments count as ours. The pure parts of bench.demo.processes."""

from __future__ import annotations

from bench.demo.processes import (
    ProcStat,
    Session,
    parse_stat,
    segments_in_maps,
    select_members,
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


def test_segments_are_the_mapped_paths_that_still_have_a_name() -> None:
    maps = (
        "7f00-7f10 rw-s 00000000 00:18 5 /dev/shm/lmcache_kv_42_0\n"
        "7f10-7f20 rw-s 00000000 00:18 6 /dev/shm/psm_1 (deleted)\n"
        "7f20-7f30 r-xp 00000000 00:18 7 /usr/lib/libc.so.6\n"
    )
    assert segments_in_maps(maps) == {"/dev/shm/lmcache_kv_42_0"}
