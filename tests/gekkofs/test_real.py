"""A real GekkoFS, where variables point to one; the store's whole suite runs inside it.

    GEKKOFS_MOUNT=/tmp/gekkofs          its mount point
    GEKKOFS_PRELOAD=.../libgkfs_intercept.so    its client, unless the mount is a FUSE client's

LIBGKFS_HOSTS_FILE and the like are passed on. Namespaces are made below a new directory there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.filesystems.places import ROOT_VARIABLE
from tests.filesystems.test_store_suite import LEFT_OUT, SUITE, SUITE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
MOUNT, PRELOAD = (os.environ.get(f"GEKKOFS_{name}", "") for name in ("MOUNT", "PRELOAD"))


@pytest.mark.nightly
@pytest.mark.skipif(not MOUNT, reason="GEKKOFS_MOUNT points to no GekkoFS (see this file)")
def test_the_store_suite_passes_on_a_real_gekkofs() -> None:
    client = {"LD_PRELOAD": PRELOAD} if PRELOAD else {}
    left_out = [word for test in LEFT_OUT["gekkofs"] for word in ("--deselect", test)]
    # The guard first: pytest's plugins may spawn while they are imported.
    command = [sys.executable, "-m", "sharedfs_backend.preload", "pytest", "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "not slow", *left_out, *SUITE],
        cwd=ROOT,
        env=dict(os.environ) | client | {ROOT_VARIABLE: MOUNT},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SUITE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
