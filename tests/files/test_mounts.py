"""Recognition and warnings from mountinfo texts as real machines write them."""

from __future__ import annotations

import pytest

from sharedfs_backend.files.mounts import (
    Mount,
    mount_of,
    parse_mountinfo,
    preload_client,
    recognise,
    warnings_of,
)

TEXT = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
25 22 0:23 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64
94 22 0:51 / /scratch rw,relatime shared:50 - lustre 10.149.0.1@o2ib:10.149.0.2@o2ib:/scratch rw,flock,user_xattr,lazystatfs
95 22 0:52 / /home rw,nosuid,relatime shared:51 - nfs4 filer.example:/export/home rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,nconnect=8,timeo=600,retrans=2,sec=krb5p,clientaddr=10.0.0.7,lookupcache=pos,local_lock=none,addr=10.0.0.1
96 95 0:53 / /home/shared\040data rw,relatime - nfs filer:/kv rw,vers=3,rsize=65536,wsize=65536,namlen=255,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,soft,noac,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.0.0.1,local_lock=none,addr=10.0.0.1
97 22 0:54 / /kv rw,sync,relatime - nfs filer:/fast rw,vers=3,rsize=1048576,wsize=1048576,acregmax=3600,acdirmax=3600,nocto,hard,nconnect=8,proto=tcp
98 22 0:55 / /gl ro,relatime - fuse.glusterfs localhost:/vol rw,user_id=0,group_id=0,allow_other,max_read=131072
99 22 0:56 / /gk rw,nosuid,nodev,relatime - fuse.gkfs_fuse gkfs_fuse rw,user_id=1000,group_id=1000
100 22 0:57 / /gk2 rw,relatime - fuse gekkofs rw,user_id=1000
101 22 0:58 / /gk rw,relatime - xfs /dev/sdb1 rw
102 22 0:59 / /odd rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs.conf
broken line
"""  # noqa: E501 - lines as the kernel writes them

MOUNTS = parse_mountinfo(TEXT)


def at(path: str) -> Mount:
    found = mount_of(path, MOUNTS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "point", "name"),
    [
        ("/var/tmp/ns", "/", "local"),
        ("/dev/shm/ns", "/dev/shm", "local"),
        ("/scratch/me/ns", "/scratch", "lustre"),
        ("/scratch2", "/", "local"),
        ("/home/me", "/home", "nfs"),
        ("/home/shared data/ns", "/home/shared data", "nfs"),
        ("/gl", "/gl", "glusterfs"),
        ("/gk2/ns", "/gk2", "gekkofs"),
        ("/gk/ns", "/gk", "local"),  # the latest mount on a point hides those before it
        ("/odd/ns", "/odd", "posix"),
    ],
)
def test_a_path_is_on_its_deepest_mount_whose_profile_is_known(
    path: str, point: str, name: str
) -> None:
    assert (at(path).point, recognise(at(path), None, {})) == (point, name)


def test_a_gekkofs_fuse_mount_is_recognised_by_its_kind() -> None:
    mount = next(found for found in MOUNTS if found.kind == "fuse.gkfs_fuse")
    assert recognise(mount, 0x65735546, {}) == "gekkofs"


def test_a_preloaded_client_is_recognised_where_statfs_says_nothing() -> None:
    environ = {"LD_PRELOAD": "/opt/x/libother.so:/opt/gkfs/lib/libgkfs_intercept.so"}
    assert preload_client(environ) == "/opt/gkfs/lib/libgkfs_intercept.so"
    assert recognise(at("/gk/ns"), 0, environ) == "gekkofs"
    assert recognise(at("/gk/ns"), None, environ) == "gekkofs"
    assert recognise(at("/scratch"), 0x0BD00BD0, environ) == "lustre"
    assert preload_client({"LD_PRELOAD": "/opt/gkfs/lib/libjemalloc.so"}) is None


def test_without_a_mount_table_the_type_of_statfs_decides() -> None:
    assert recognise(None, 0x6969, {}) == "nfs"
    assert recognise(None, 0x0BD00BD0, {}) == "lustre"
    assert recognise(None, None, {}) == "posix"


@pytest.mark.parametrize("path", ["/", "/scratch", "/home", "/gk2", "/odd"])
def test_a_well_mounted_file_system_is_not_warned_about(path: str) -> None:
    assert warnings_of(at(path)) == []


@pytest.mark.parametrize(
    ("path", "remedies"),
    [
        (
            "/home/shared data",
            [
                "lookupcache=pos",
                "leave that option out",
                "with hard",
                "rsize=1048576",
                "nconnect=8",
            ],
        ),
        ("/kv", ["lookupcache=pos", "leave nocto out", "acdirmax=60", "leave sync out"]),
        ("/gl", ["mount it rw"]),
        ("/dev/shm", ["use a directory on a shared file system"]),
    ],
)
def test_each_costly_option_is_warned_about_with_its_remedy(path: str, remedies: list[str]) -> None:
    found = warnings_of(at(path))
    assert len(found) == len(remedies)
    assert all(remedy in text for remedy, text in zip(remedies, found, strict=True))
    assert all(text.startswith(f"{path} (") for text in found)


def test_an_attribute_timeout_of_zero_counts_as_noac() -> None:
    options = {"lookupcache": "none", "acregmax": "0", "acdirmax": "0"}
    assert len(warnings_of(Mount("/n", "nfs4", "f:/n", options | {"nconnect": "4"}))) == 1


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 1), ({"nconnect": "1"}, 1), ({"nconnect": "8"}, 0), ({"proto": "rdma"}, 0)],
)
def test_one_tcp_connection_is_advised_against(options: dict[str, str], count: int) -> None:
    mount = Mount("/n", "nfs4", "f:/n", {"lookupcache": "pos"} | options)
    assert len([text for text in warnings_of(mount) if "nconnect" in text]) == count
