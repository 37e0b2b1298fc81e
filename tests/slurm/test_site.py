"""Settings: what the environment says, what is refused and how, and the example beside them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from launch.site import SHELL_SETTINGS, Site, SiteError, variable_of

EXAMPLE = Path(__file__).resolve().parents[2] / "launch" / "slurm" / "site.env.example"
NEEDED = {"FLEET_MODEL": "/models/m", "FLEET_NAMESPACE": "/shared/kv"}
GEKKOFS = {
    "FLEET_NAMESPACE": "/gekko/kv",
    "FLEET_GEKKOFS": "/opt/gkfs_daemon",
    "FLEET_GEKKOFS_DATA": "/local",
    "FLEET_GEKKOFS_MOUNT": "/gekko",
    "FLEET_GEKKOFS_CLIENT": "/opt/libgkfs_intercept.so",
    "FLEET_REGISTRY": "/shared/registry",
}


def site(**changes: str) -> Site:
    return Site.from_environment(NEEDED | changes)


def test_model_and_namespace_are_all_that_must_be_given() -> None:
    assert site() == Site(model="/models/m", namespace="/shared/kv")


def test_words_are_split_as_a_shell_does() -> None:
    given = site(FLEET_ENGINE_ARGUMENTS="--dtype float32 --chat-template 'a b'")
    assert given.engine_arguments == ("--dtype", "float32", "--chat-template", "a b")


def test_what_is_no_setting_of_ours_is_left_alone() -> None:
    assert site(SLURM_JOB_ID="7", FLEET_HOME="/x", FLEET_PYTHON="python") == site()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"FLEET_MODLE": "x"}, "did you mean FLEET_MODEL?"),
        ({"FLEET_MODEL": ""}, "FLEET_MODEL is missing"),
        ({"FLEET_NAMESPACE": ""}, "FLEET_NAMESPACE is missing"),
        ({"FLEET_NAMESPACE": "kv"}, "FLEET_NAMESPACE=kv: must be an absolute path"),
        ({"FLEET_DEVICE": "gpu"}, "must be one of cuda, cpu"),
        ({"FLEET_L1_GIB": "much"}, "FLEET_L1_GIB=much: must be a number"),
        ({"FLEET_ROUTER_PORT": "70000"}, "between 0 and 65535"),
        ({"FLEET_ENGINE_ARGUMENTS": "'x"}, "words as in a shell"),
        ({"FLEET_STORE_SETTINGS": '{"root": "/x"}'}, "without `root`"),
        ({"FLEET_STORE_SETTINGS": "{"}, "not JSON"),
        ({"FLEET_CORES": "0-3;4"}, "separated by |"),
        ({"FLEET_KEPT": "/shared/kv"}, "needs no staging"),
        (GEKKOFS | {"FLEET_NAMESPACE": "/shared/kv"}, "must lie below FLEET_GEKKOFS_MOUNT"),
        (GEKKOFS | {"FLEET_GEKKOFS_CLIENT": ""}, "FLEET_GEKKOFS_CLIENT is missing"),
        (GEKKOFS | {"FLEET_REGISTRY": ""}, "FLEET_REGISTRY is missing"),
        (GEKKOFS | {"FLEET_GEKKOFS_DATA": ""}, "FLEET_GEKKOFS_DATA is missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SiteError, match=re.escape(said)):
        site(**changes)


def test_with_a_fuse_client_replicas_announce_themselves_on_gekkofs() -> None:
    given = site(**GEKKOFS | {"FLEET_REGISTRY": "", "FLEET_GEKKOFS_ACCESS": "fuse"})
    assert given.registry_root == "/gekko/kv"


def example(**changes: str) -> dict[str, str]:
    """The variables that sourcing the example sets."""
    script = f"set -a; . {EXAMPLE}; env"
    done = subprocess.run(
        ["bash", "-c", script], env={}, capture_output=True, text=True, check=True
    )
    pairs = (line.split("=", 1) for line in done.stdout.splitlines())
    return {name: value for name, value in pairs if name.startswith("FLEET_")} | changes


def test_the_example_holds_every_setting_at_its_default() -> None:
    names = {variable_of(field.name) for field in dataclasses.fields(Site)}
    given = example()
    assert set(given) == names | {"FLEET_PYTHON"}
    assert Site.from_environment(given | NEEDED) == site()
    defaults = {
        variable_of(f.name): f.default
        for f in dataclasses.fields(Site)
        if f.default not in ("", ())
    }
    shown = {name for name, value in given.items() if value}
    assert set(defaults) - {"FLEET_MODEL"} - {"FLEET_STORE_SETTINGS"} <= shown


def test_each_setting_of_the_example_has_a_sentence_above_it() -> None:
    lines = EXAMPLE.read_text().splitlines()
    bare = [
        line
        for above, line in itertools.pairwise(lines)
        if line.startswith("FLEET_") and not above.startswith("# ")
    ]
    assert bare == []


def test_the_scripts_read_no_other_settings() -> None:
    known = {variable_of(field.name) for field in dataclasses.fields(Site)}
    known |= {variable_of(name) for name in SHELL_SETTINGS}
    for script in EXAMPLE.parent.glob("*.s*"):
        used = set(re.findall(r"FLEET_[A-Z_]+[A-Z]", script.read_text()))
        assert used - known == set(), script.name
