"""Settings: everything a site may change about the router, each with unit, default, bound, reason.

Checked when made: one that exists is valid, and whatever is wrong ends in a `SettingsError` that
says what to do. The command line (`cli`) is a thin skin over it. Pure values; reading a key's file
is the command line's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

MIB = 1 << 20

POLICIES = (
    "ttft",
    "least-pending-seconds",
    "least-requests",
    "consistent-hash",
    "radix",
    "weighted-2-1",
    "weighted-3-2-2",
    "round-robin",
    "random",
)

BOUNDS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "workers": (1, 64),
    "body_bytes_max": (1024, 4 << 30),
    "slo_seconds": (0.001, 86400),
    "retries_max": (0, 16),
    "drain_seconds": (0, 86400),
    "first_byte_seconds_max": (1, 86400),
    "health_seconds": (0.05, 300),
    "scrape_seconds": (0.05, 300),
    "list_seconds": (0.05, 300),
}


class SettingsError(ValueError):
    """The router cannot start like this; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Exactly one of `replicas`, `replica_file` and `namespace` is given."""

    replicas: tuple[str, ...] = ()
    """URLs."""
    replica_file: str | None = None
    """A file with one URL a line, or an http(s) URL that serves such a text; read again."""
    namespace: str | None = None
    """The root of a namespace in which replicas announce themselves."""
    secret_file: str | None = None
    """The namespace's secret, where it has one."""
    model: str | None = None
    """Of a namespace: only replicas of this model. None: all."""

    host: str = "0.0.0.0"
    port: int = 9000
    """0: any free one; the first line of output names it."""
    workers: int = 1
    """Processes on the port. One moves some thousand streamed requests a second."""

    policy: str = "ttft"
    slo_seconds: float | None = None
    """Requests whose least estimated cost is above this get 429. None: nobody is turned away."""
    tokenizer: str | None = None
    """Exact mode: the directory of the model's tokenizer."""
    kv_events: bool = False
    """Subscribe to the replicas' KV events, where they are announced."""

    no_load_params: str | None = None
    """A JSON object: what asks the site's KV connector, in `kv_transfer_params`, not to load."""

    api_key: str | None = None
    """Clients must send it. None: anybody may ask."""
    replica_key: str | None = None
    """Sent to the replicas in place of the client's."""

    body_bytes_max: int = 64 * MIB
    retries_max: int = 2
    """Other replicas tried before the first byte."""
    first_byte_seconds_max: float = 1800.0
    """A replica silent for this long has failed. Long, because the answer to a request without
    streaming begins when it is complete."""
    drain_seconds: float = 30.0
    """SIGTERM lets streams finish for this long (Slurm's default between SIGTERM and SIGKILL)."""
    health_seconds: float = 1.0
    health_path: str = "/health"
    scrape_seconds: float = 1.0
    list_seconds: float = 1.0
    """How often the replica list is read again."""

    def __post_init__(self) -> None:
        given = [bool(self.replicas), self.replica_file is not None, self.namespace is not None]
        if sum(given) != 1:
            raise SettingsError(
                "say where the replicas are: exactly one of --replicas http://a:8000,..., "
                "--replica-file PATH and --namespace ROOT"
            )
        if self.policy not in POLICIES:
            raise SettingsError(f"--policy {self.policy!r}: one of {', '.join(POLICIES)}")
        if self.kv_events and self.tokenizer is None:
            raise SettingsError("--kv-events speaks of tokens: it needs --tokenizer PATH")
        for known in fields(self):
            value = getattr(self, known.name)
            if known.name in BOUNDS and value is not None:
                low, high = BOUNDS[known.name]
                if not low <= value <= high:
                    option = known.name.replace("_", "-")
                    if known.name == "body_bytes_max":
                        option, value, low, high = "body-mib-max", value / MIB, 1, high / MIB
                    raise SettingsError(f"--{option} {value:g}: from {low:g} to {high:g}")
        self.no_load()
        path = self.health_path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise SettingsError("--health-path begins with a slash and is printable ASCII")
        if self.namespace is None:
            for option, value in (("--model", self.model), ("--secret-file", self.secret_file)):
                if value is not None:
                    raise SettingsError(f"{option} is a namespace's: it needs --namespace ROOT")
        for name in ("api_key", "replica_key"):
            key = getattr(self, name)
            if key is not None and (not key or not key.isascii() or not key.isprintable()):
                raise SettingsError(f"the {name.replace('_', ' ')} is empty or not printable ASCII")

    def no_load(self) -> dict[str, Any]:
        """`no_load_params`, read; empty without."""
        if self.no_load_params is None:
            return {}
        try:
            found = json.loads(self.no_load_params)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found:
            raise SettingsError(
                "--no-load-params is a JSON object, like '{\"lmcache.skip_load\": true}'"
            )
        return found
