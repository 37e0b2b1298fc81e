"""Premises: what a node must have before anything of a fleet is started there.

What is missing on one node of many ends in a log on that node otherwise, minutes later and five
times over. Looks at this machine only and changes nothing; whatever is wrong is a `SiteError` that
names the node, the setting, and what to do.

Must not know: processes, Slurm.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable

from launch.plan import fixed_ports
from launch.site import Site, SiteError, variable_of


def check_start(site: Site, node: str) -> None:
    """What the job needs on its first node, before the namespace is made. Raises SiteError."""
    check_router_port(site, node)
    _check_common(site, node)


def check_node(site: Site, node: str, replicas: int) -> None:
    """What a node's part needs, once the namespace is made. Raises SiteError."""
    _check_common(site, node)
    for name in ("namespace", "registry"):
        path = getattr(site, name)
        if path and not _is_on_gekkofs(site, path):
            _check_namespace(name, path, node)
    if site.port_first:
        _check_ports("port_first", fixed_ports(site.port_first, replicas), node)


def check_router_port(site: Site, node: str) -> None:
    """Another fleet's router there would be taken for ours. Raises SiteError."""
    if site.router_port:
        _check_ports("router_port", (site.router_port,), node)


def _check_common(site: Site, node: str) -> None:
    if site.model.startswith("/") and not os.path.exists(site.model):
        raise SiteError(
            f"{node}: FLEET_MODEL={site.model} is not there: put it where every node sees it, and "
            "in a container under IMAGE_BINDS"
        )
    for name in ("secret_file", "api_key_file"):
        _check_readable(name, getattr(site, name), node)
    try:
        with tempfile.TemporaryFile(dir=site.scratch):
            pass
    except OSError as error:
        raise SiteError(
            f"{node}: FLEET_SCRATCH={site.scratch}: nothing can be written there "
            f"({error.strerror}); give a directory that every node has, best on its own disk"
        ) from None


def _check_readable(name: str, path: str, node: str) -> None:
    try:
        if path:
            with open(path, "rb"):
                pass
    except OSError as error:
        raise SiteError(
            f"{node}: {variable_of(name)}={path} cannot be read ({error.strerror}): put it where "
            "every node sees it, readable by you"
        ) from None


def _check_namespace(name: str, path: str, node: str) -> None:
    if not os.path.isdir(path):
        raise SiteError(
            f"{node}: {variable_of(name)}={path} is not there: is the shared file system mounted "
            f"on this node (in a container: is it below IMAGE_BINDS)? `sbatch --exclude={node}` "
            "leaves the node out"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise SiteError(
            f"{node}: {variable_of(name)}={path} cannot be written here: check its owner, its "
            "mode, and that it is not mounted read-only"
        )


def _check_ports(name: str, ports: Iterable[int], node: str) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                raise SiteError(
                    f"{node}: {variable_of(name)}: port {port} cannot be had ({error.strerror}); "
                    "another fleet may have it: give another number, or 0 for any free port"
                ) from None


def _is_on_gekkofs(site: Site, path: str) -> bool:
    """Seen by the LMCache server alone, or not mounted yet."""
    return bool(site.gekkofs) and (path + "/").startswith(site.gekkofs_mount.rstrip("/") + "/")
