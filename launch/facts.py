"""Facts: what this node is and has: its name, address, GPUs and cores.

The only module that reads what Slurm and the machine say of a node. The address is that of the
interface the site names, else what the host name stands for; an address that only this machine
knows is refused where there are other nodes, because routers and clients there could not use it.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
from collections.abc import Mapping

from launch.plan import NodeFacts
from launch.site import Site, SiteError

SIOCGIFADDR = 0x8915
ASK_SECONDS = 30.0


def gather(site: Site, environ: Mapping[str, str]) -> NodeFacts:
    """This node. Raises SiteError where its address cannot be told."""
    name = environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    nodes = int(environ.get("SLURM_JOB_NUM_NODES", "1"))
    return NodeFacts(
        name=name,
        address=_address(site, nodes),
        gpus=_gpus(environ) if site.device == "cuda" else (),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def _address(site: Site, nodes: int) -> str:
    if site.interface:
        return _address_of_interface(site.interface)
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise SiteError(f"the host name {host} has no address ({error}); {_SET}") from None
    if address.startswith("127.") and nodes > 1:
        raise SiteError(f"{host} stands for {address}, which other nodes cannot reach; {_SET}")
    return address


_SET = "set FLEET_INTERFACE to the network interface between the nodes (see `ip address`)"


def _address_of_interface(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise SiteError(
                f"FLEET_INTERFACE={name}: {error.strerror}; this node has {known}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def _gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What Slurm gave this job here; without Slurm's list, all that the driver shows."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(word for word in given.split(",") if word.strip())
    try:
        shown = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return gpus_of(shown)


def gpus_of(listing: str) -> tuple[str, ...]:
    """Indices in the output of `nvidia-smi -L`: "GPU 0: NVIDIA A40 (UUID: ...)"."""
    return tuple(re.findall(r"^GPU (\d+):", listing, re.MULTILINE))
