"""What a node lacks is said before anything starts there: the node, the setting, the remedy."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.premises import check_node, check_router_port, check_start
from launch.site import Site, SiteError


@pytest.fixture
def site(tmp_path: Path) -> Site:
    for name in ("model", "kv", "scratch"):
        (tmp_path / name).mkdir()
    return Site(
        model=str(tmp_path / "model"),
        namespace=str(tmp_path / "kv"),
        scratch=str(tmp_path / "scratch"),
        router_port=0,
    )


def refused(check: Callable[[], None], *said: str) -> None:
    with pytest.raises(SiteError, match=r"^n2: ") as caught:
        check()
    for words in said:
        assert words in str(caught.value)


def test_a_node_that_has_everything_is_taken_and_nothing_is_left(site: Site) -> None:
    check_start(site, "n2")
    check_node(site, "n2", 1)
    assert os.listdir(site.scratch) == []


def test_a_node_without_the_shared_path_is_named(site: Site) -> None:
    lost = replace(site, namespace="/nowhere/kv")
    check_start(lost, "n2")  # it may have to be made
    refused(lambda: check_node(lost, "n2", 1), "FLEET_NAMESPACE=/nowhere/kv", "--exclude=n2")


def test_a_namespace_that_cannot_be_written_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    refused(lambda: check_node(site, "n2", 1), "cannot be written here", "read-only")


def test_a_namespace_on_gekkofs_is_not_looked_for(site: Site) -> None:
    on_gekkofs = replace(
        site,
        namespace="/gekko/kv",
        registry=site.namespace,
        gekkofs="/opt/gkfs_daemon",
        gekkofs_data="/local",
        gekkofs_mount="/gekko",
        gekkofs_client="/opt/libgkfs_intercept.so",
    )
    check_node(on_gekkofs, "n2", 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model", "put it where every node sees it"),
        ("scratch", "give a directory that every node has"),
        ("secret_file", "cannot be read (No such file or directory)"),
        ("api_key_file", "readable by you"),
    ],
)
def test_a_path_that_is_not_there_is_named(site: Site, name: str, said: str) -> None:
    lost = replace(site, **{name: "/nowhere/x"})  # type: ignore[arg-type]  # all four are text
    for check in (lambda: check_start(lost, "n2"), lambda: check_node(lost, "n2", 1)):
        refused(check, f"FLEET_{name.upper()}=/nowhere/x", said)


def test_a_models_name_is_no_path(site: Site) -> None:
    check_start(replace(site, model="meta-llama/Llama-3.1-8B"), "n2")


def _taken_above_a_free_one() -> socket.socket:
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        try:
            socket.create_server(("127.0.0.1", taken.getsockname()[1] - 1)).close()
        except OSError:
            taken.close()
        else:
            return taken


def test_a_port_in_use_is_named_and_another_one_asked_for(site: Site) -> None:
    with _taken_above_a_free_one() as taken:
        port = taken.getsockname()[1]
        routed, fixed = replace(site, router_port=port), replace(site, port_first=port - 1)
        refused(lambda: check_router_port(routed, "n2"), f"FLEET_ROUTER_PORT: port {port}")
        refused(lambda: check_start(routed, "n2"), "another fleet may have it")
        refused(lambda: check_node(fixed, "n2", 1), f"FLEET_PORT_FIRST: port {port}")
    check_start(routed, "n2")
