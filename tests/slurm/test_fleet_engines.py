"""`fleet.sbatch` on virtual nodes with real engines: what one node prefilled is reloaded on the
other, a killed node is survived, a requeued job finds its hits, and nothing is left (I4, I5).

One fleet lives through the tests in their order. Proof of a reload is the reader's own counter of
prompt tokens by source.
"""

from __future__ import annotations

import http.client
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from bench.demo.client import Completion, complete, get_metrics
from bench.demo.model import ensure_model_apart
from bench.demo.prompts import tokens
from bench.demo.replica_spec import REPOSITORY
from tests.slurm.fleetjob import FleetJob

pytestmark = pytest.mark.engine
UP_SECONDS = 600.0
CHUNK_TOKENS = 256
HTTP = "--http-port"
PROMPT_TOKENS = 1100

ENGINE = "--dtype float32 --enforce-eager --max-model-len 4096"


@pytest.fixture(scope="module")
def fleet(job: FleetJob) -> FleetJob:
    """Up on n1 and n2."""
    model = ensure_model_apart(REPOSITORY / ".demo" / "model")
    settings = {
        "FLEET_MODEL": str(model),
        "FLEET_ENGINE_ARGUMENTS": ENGINE,
        "FLEET_STOP_SECONDS": "16",
        "FLEET_LEASE_SECONDS": "8",
        "FLEET_START_SECONDS": "200",  # an engine that hangs is started again after 400
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # The first request for logprobs would have each engine compile a kernel, for a minute.
        "TORCHDYNAMO_DISABLE": "1",
        "XDG_CACHE_HOME": str(job.folder / "cache"),
    }
    job.submit(settings, "--nodes=2", stubs=False)
    _wait_for_both(job)
    return job


def test_a_request_is_reloaded_on_the_other_node(fleet: FleetJob) -> None:
    first, second = sorted(fleet.replicas())
    computed = _on(fleet, first, "shared")
    whole = PROMPT_TOKENS // CHUNK_TOKENS
    fleet.wait(lambda: min(_known_chunks(fleet)) >= whole, "both nodes know what was stored", 120)
    reloaded, answer = _reloaded(fleet, second, "shared")
    assert reloaded == PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
    assert answer.tokens == computed.tokens


def test_a_killed_node_is_survived(fleet: FleetJob) -> None:
    survivor = dict(fleet.starts())["n1-0"]
    fleet.cluster.kill_node("n2")
    assert _ask(fleet, "after the loss").replica == survivor
    fleet.wait(lambda: set(fleet.replicas()) == {survivor}, "the dead one is forgotten", 120)
    assert fleet.state == "RUNNING"


def test_requeued_it_finds_its_hits(fleet: FleetJob) -> None:
    fleet.wait(lambda: "Node failure on n2" in fleet.said, "Slurm has noticed", 120)
    fleet.cluster.run("scontrol", "requeue", str(fleet.job_id))
    fleet.wait(lambda: not fleet.url, "the first run has ended")
    _wait_for_both(fleet)
    for replica in sorted(fleet.replicas()):
        reloaded, _ = _reloaded(fleet, replica, "shared")
        assert reloaded == PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS


def test_cancelled_it_leaves_nothing(fleet: FleetJob) -> None:
    fleet.cancel()
    fleet.wait_state("CANCELLED", 120)
    assert fleet.left_over() == []


def _wait_for_both(fleet: FleetJob) -> None:
    fleet.wait_up(UP_SECONDS)
    fleet.wait(lambda: len(fleet.replicas()) == 2, "both replicas are there", UP_SECONDS)


def _known_chunks(fleet: FleetJob) -> list[int]:
    """Chunks that each node's LMCache server finds in the namespace."""
    ports = set()
    for pid in fleet.pids():
        with suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            ports |= {int(words[words.index(HTTP) + 1])} if HTTP in words else set()
    return [round(get_metrics(port).total("sharedfs_catalog_chunks")) for port in ports]


def _ask(fleet: FleetJob, text: str) -> Completion:
    """Through the router, wherever it goes."""
    prompt = tokens(text, PROMPT_TOKENS)
    model = str(REPOSITORY / ".demo" / "model")
    return complete(int(fleet.url.rpartition(":")[2]), model, prompt, tokens_max=8)


def _on(fleet: FleetJob, replica: str, text: str) -> Completion:
    """Through the router, all other replicas draining."""
    others = [other for other in fleet.replicas() if other != replica]
    for other in others:
        _drain(fleet, other, "POST")
    try:
        answer = _ask(fleet, text)
    finally:
        for other in others:
            _drain(fleet, other, "DELETE")
    assert answer.replica == replica
    return answer


def _reloaded(fleet: FleetJob, replica: str, text: str) -> tuple[int, Completion]:
    """(prompt tokens that came from the shared tier, the answer)."""
    port = int(replica.rpartition(":")[2])
    before = _from_tier(port)
    answer = _on(fleet, replica, text)
    return _from_tier(port) - before, answer


def _from_tier(port: int) -> int:
    metrics = get_metrics(port)
    return round(metrics.total("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"))


def _drain(fleet: FleetJob, replica: str, method: str) -> None:
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=10.0)
    connection.request(method, f"/replicas/{quote(replica, safe='')}/drain")
    assert connection.getresponse().status == 200
    connection.close()
