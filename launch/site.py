"""Site: every setting of a fleet on a cluster, read from the environment and checked. Values only.

A setting is one field of `Site`; FLEET_ and its name in capitals is the variable that
`launch/slurm/site.env` sets. Nobody else reads those variables, except the shell scripts, which
read the few they need themselves (they are listed in `SHELL_SETTINGS`) and never check anything.
Whatever is wrong ends in a `SiteError` that names the variable, what is allowed, and what to do.

Must not know: Slurm, processes, files. A name with FLEET_ that is no setting is an error, because
a misspelt setting would otherwise be its default, silently.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PREFIX = "FLEET_"
SHELL_SETTINGS = frozenset({"home", "site", "python", "gekkofs_hosts"})
"""Not settings of `Site`: where the checkout and site.env lie, how Python is run, and what the
scripts pass on."""
DEVICES = ("cuda", "cpu")
ACCESS = ("preload", "fuse", "library")
PORTS_MAX = 65535


class SiteError(Exception):
    """A setting is wrong; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Site:
    """A fleet's settings. See `launch/slurm/site.env.example` for what each is for."""

    # What is served
    model: str
    device: str = "cuda"
    gpus_per_replica: int = 1
    replicas_per_node: int = 0
    cores: str = ""
    engine_arguments: tuple[str, ...] = ()
    server_arguments: tuple[str, ...] = ()
    router_arguments: tuple[str, ...] = ()
    l1_gib: float = 20.0
    chunk_tokens: int = 256
    # The shared tier
    namespace: str = ""
    cap: str = ""
    secret_file: str = ""
    store_settings: str = "{}"
    registry: str = ""
    # Network
    interface: str = ""
    port_first: int = 0
    router_port: int = 9000
    api_key_file: str = ""
    # The job
    logs: str = ""
    scratch: str = "/tmp"
    start_seconds: float = 1800.0
    stop_seconds: float = 20.0
    drain_seconds: float = 30.0
    lease_seconds: int = 120
    restarts_max: int = 5
    # GekkoFS on the allocation
    gekkofs: str = ""
    gekkofs_data: str = ""
    gekkofs_mount: str = ""
    gekkofs_access: str = "preload"
    gekkofs_client: str = ""
    gekkofs_arguments: tuple[str, ...] = ()
    # Staging
    kept: str = ""
    stage_seconds: float = 200.0
    stage_bytes: str = ""

    def __post_init__(self) -> None:
        for rule in _RULES:
            rule(self)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Site:
        """The settings in FLEET_ variables; an empty one is the default. Raises SiteError."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, object] = {}
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX):
                continue
            name = variable.removeprefix(PREFIX).lower()
            if name in SHELL_SETTINGS:
                continue
            if name not in fields:
                raise SiteError(_unknown(variable, fields))
            if text.strip():
                values[name] = _parsed(variable, str(fields[name].type), text.strip())
        if "model" not in values:
            raise SiteError(
                "FLEET_MODEL is missing: give the model's directory or name as vLLM takes it"
            )
        return cls(**values)  # type: ignore[arg-type]  # the values have the fields' types

    @property
    def registry_root(self) -> str:
        """The namespace in which replicas announce themselves."""
        return self.registry or self.namespace

    @property
    def adapter_params(self) -> dict[str, object]:
        """What the plugin is told: `root`, and what was given in FLEET_STORE_SETTINGS."""
        params: dict[str, object] = {"root": self.namespace}
        if self.secret_file:
            params["secret_file"] = self.secret_file
        if self.client_library:
            params["client_library"] = self.client_library
        return params | dict(json.loads(self.store_settings))

    @property
    def client_library(self) -> str:
        """The library through which the plugin itself calls GekkoFS; empty otherwise."""
        return self.gekkofs_client if self.gekkofs and self.gekkofs_access == "library" else ""


def variable_of(name: str) -> str:
    """FLEET_MODEL for model."""
    return PREFIX + name.upper()


def _unknown(variable: str, fields: Mapping[str, object]) -> str:
    known = [variable_of(name) for name in fields]
    near = difflib.get_close_matches(variable, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{variable} is no setting{hint} (all of them stand in launch/slurm/site.env.example)"


def _parsed(variable: str, kind: str, text: str) -> object:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind.startswith("tuple"):
            return tuple(shlex.split(text))
    except ValueError as error:
        wanted = {"int": "a whole number", "float": "a number"}.get(kind, "words as in a shell")
        raise SiteError(f"{variable}={text}: must be {wanted} ({error})") from None
    return text


def _choices(site: Site) -> None:
    for name, allowed in (("device", DEVICES), ("gekkofs_access", ACCESS)):
        if getattr(site, name) not in allowed:
            raise SiteError(
                f"{variable_of(name)}={getattr(site, name)}: must be one of {', '.join(allowed)}"
            )


def _bounds(site: Site) -> None:
    for name, low, high in (
        ("gpus_per_replica", 1, 64),
        ("replicas_per_node", 0, 64),
        ("l1_gib", 0.1, 65536),
        ("chunk_tokens", 16, 65536),
        ("port_first", 0, PORTS_MAX),
        ("router_port", 0, PORTS_MAX),
        ("start_seconds", 10, 86400),
        ("stop_seconds", 1, 3600),
        ("drain_seconds", 0, 86400),
        ("lease_seconds", 4, 3600),
        ("restarts_max", 0, 1000),
        ("stage_seconds", 0, 86400),
    ):
        if not low <= getattr(site, name) <= high:
            raise SiteError(
                f"{variable_of(name)}={getattr(site, name)}: must be between {low} and {high}"
            )


def _paths(site: Site) -> None:
    if not site.namespace:
        raise SiteError(
            "FLEET_NAMESPACE is missing: give the absolute path of the directory that all replicas "
            "share (with GekkoFS, one below FLEET_GEKKOFS_MOUNT)"
        )
    for name in _PATHS:
        value = getattr(site, name)
        if value and not value.startswith("/"):
            raise SiteError(f"{variable_of(name)}={value}: must be an absolute path")


_PATHS = (
    "namespace",
    "registry",
    "secret_file",
    "api_key_file",
    "logs",
    "scratch",
    "kept",
    "gekkofs",
    "gekkofs_data",
    "gekkofs_mount",
)


def _store_settings(site: Site) -> None:
    try:
        value = json.loads(site.store_settings)
    except ValueError as error:
        raise SiteError(f"FLEET_STORE_SETTINGS: not JSON ({error})") from None
    if not isinstance(value, dict) or "root" in value:
        raise SiteError(
            "FLEET_STORE_SETTINGS: must be a JSON object of the plugin's settings, without `root`"
        )


def _cores(site: Site) -> None:
    if site.cores and not re.fullmatch(r"[0-9,-]+(\|[0-9,-]+)*", site.cores):
        raise SiteError(
            f"FLEET_CORES={site.cores}: one list of cores for each replica of a node, separated "
            "by |, for example 0-15|16-31"
        )


def _gekkofs(site: Site) -> None:
    if not site.gekkofs:
        return
    for name in ("gekkofs_data", "gekkofs_mount"):
        if not getattr(site, name):
            raise SiteError(f"{variable_of(name)} is missing: FLEET_GEKKOFS needs it")
    if not (site.namespace + "/").startswith(site.gekkofs_mount.rstrip("/") + "/"):
        raise SiteError(
            f"FLEET_NAMESPACE={site.namespace}: must lie below FLEET_GEKKOFS_MOUNT="
            f"{site.gekkofs_mount} where FLEET_GEKKOFS is set"
        )
    if not site.gekkofs_client:
        raise SiteError(
            "FLEET_GEKKOFS_CLIENT is missing: the client library (preload, library) or the "
            "FUSE client's program (fuse)"
        )
    if site.gekkofs_access != "fuse" and not site.registry:
        raise SiteError(
            "FLEET_REGISTRY is missing: without a mount only the LMCache server sees GekkoFS, so "
            "replicas announce themselves in a namespace on the parallel file system; give a "
            "directory there"
        )


def _staging(site: Site) -> None:
    if site.kept and site.kept == site.namespace:
        raise SiteError(
            "FLEET_KEPT is FLEET_NAMESPACE: a namespace on a file system that outlives the job "
            "needs no staging; leave FLEET_KEPT empty"
        )


_RULES: tuple[Callable[[Site], None], ...] = (
    _choices,
    _bounds,
    _paths,
    _store_settings,
    _cores,
    _gekkofs,
    _staging,
)
