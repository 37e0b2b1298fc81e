"""The router in front of the demo's replicas: started, asked, told whom to leave out.

`complete_on` sends a prompt through the router to one replica, by draining the others: that is how
a step of the scenario shows what one replica finds of another's work. `complete` lets the router
choose. It is one process of the fleet and ends with it.

Must not know: what is measured, and the store.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.demo.client import Completion, Metrics, RequestFailed, complete, get_metrics, get_text
from bench.demo.fleet import Fleet, FleetError, Replica, free_ports, tail

START_SECONDS = 60.0
TRIES = 3  # another process may take a free port before the router does


class Front:
    """The router of a running fleet. Thread-safe but for `complete_on`."""

    def __init__(self, fleet: Fleet, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self.port = 0
        self._fleet = fleet
        self._log = fleet.logs / "router.log"
        self._drained: set[str] = set()

    def start(self) -> None:
        """Starts the router and waits until it sees every replica. Raises FleetError."""
        self._log.unlink(missing_ok=True)
        urls = ",".join(f"http://{id_of(replica)}" for replica in self.replicas)
        for _ in range(TRIES):
            (self.port,) = free_ports(1)
            command = [sys.executable, "-m", "router", "--replicas", urls]
            command += ["--host", "127.0.0.1", "--port", str(self.port), "--health-seconds", "0.5"]
            process, _session = self._fleet.launch(self._log, command)
            if self._is_ready(process.poll):
                return
        raise FleetError(f"the router does not start; the end of {self._log}:\n{tail(self._log)}")

    def _is_ready(self, ended: Any) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while ended() is None and time.monotonic() < deadline:
            try:
                found = json.loads(get_text(self.port, "/ready", timeout_seconds=5.0))
            except RequestFailed:
                found = {}
            if found.get("replicas_ready") == len(self.replicas):
                return True
            time.sleep(0.1)
        return False

    def complete(
        self, prompt: Sequence[int], *, tokens_max: int, cache_salt: str | None = None
    ) -> Completion:
        """One greedy completion on the replica of the router's choice. Raises RequestFailed."""
        spec = self.replicas[0].spec
        model = spec.served_name or spec.model_argument or str(spec.model)
        return complete(self.port, model, prompt, tokens_max=tokens_max, cache_salt=cache_salt)

    def complete_on(
        self,
        replica: Replica,
        prompt: Sequence[int],
        *,
        tokens_max: int,
        cache_salt: str | None = None,
    ) -> Completion:
        """The same on one replica, all others draining. Raises FleetError."""
        for other in self.replicas:
            self.drain(other, other is not replica)
        try:
            done = self.complete(prompt, tokens_max=tokens_max, cache_salt=cache_salt)
        except RequestFailed as error:
            raise FleetError(f"{error}\n{tail(replica.log_path('engine'))}") from error
        if done.replica != id_of(replica):
            raise FleetError(f"the router sent to {done.replica} what was {replica.name}'s alone")
        return done

    def release(self) -> None:
        """No replica drains any more: the choice is the router's."""
        for replica in self.replicas:
            self.drain(replica, False)

    def drain(self, replica: Replica, is_draining: bool) -> None:
        """Nothing new goes to a draining replica. Raises FleetError."""
        name = id_of(replica)
        if (name in self._drained) == is_draining:
            return
        method = "POST" if is_draining else "DELETE"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        try:
            connection.request(method, f"/replicas/{quote(name, safe='')}/drain")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise FleetError(f"the router: {error}\n{tail(self._log)}") from error
        finally:
            connection.close()
        if status != 200:
            raise FleetError(f"the router answers {status} to draining {name}\n{tail(self._log)}")
        self._drained ^= {name}

    def in_flight(self) -> dict[str, int]:
        """Requests on each replica, by its name in the demo."""
        rows = json.loads(get_text(self.port, "/replicas"))["replicas"]
        by_id = {row["id"]: int(row["in_flight"]) for row in rows}
        return {replica.name: by_id.get(id_of(replica), 0) for replica in self.replicas}

    def metrics(self) -> Metrics:
        return get_metrics(self.port)

    def name_of(self, replica_id: str) -> str:
        """The demo's name for what the router calls a replica."""
        return next((r.name for r in self.replicas if id_of(r) == replica_id), replica_id)

    @property
    def log(self) -> Path:
        return self._log


def id_of(replica: Replica) -> str:
    """What the router calls it."""
    return f"127.0.0.1:{replica.ports.engine}"
