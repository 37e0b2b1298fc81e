"""Announce: the command that keeps a replica announced in a namespace.

    python -m router.announce --namespace ROOT --url http://host:8000

Runs beside a replica until SIGTERM or SIGINT, then withdraws. The heartbeat is the replica's, not
this helper's: it is renewed while the engine answers `/health`, so the file of a dead engine falls
silent. What is not given on the command line is asked for: the model from `/v1/models`, chunk size
and hash algorithm from LMCache's `/status`, again and again until it says them; identity and KV
size are read from the model's files.

Exit status: 0 withdrawn, 2 the namespace or an argument is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from router.announcer import Announcer
from router.download import DownloadError, download
from router.registry import AnnouncedReplica
from router.replicas import ReplicaError, replica_at
from router.settings import SettingsError
from router.sources import check_secret
from sharedfs_backend.economics import kv_bytes_per_token
from sharedfs_backend.exceptions import NamespaceError, NamespaceMissing, SharedFSError
from sharedfs_backend.files import FileFailure, LocalFiles
from sharedfs_backend.identity import model_identity
from sharedfs_backend.layout import RealmDescriptor, Seal
from sharedfs_backend.namespace import Namespace, open_namespace
from sharedfs_backend.settings import Settings

__all__ = ["Announcer", "main"]

log = logging.getLogger("router.announce")

ASK_SECONDS = 5.0
"""How long an engine may take for all of an answer; a busy one does so between two steps."""
ANSWER_BYTES_MAX = 1 << 20
WAIT_SECONDS = 2.0
"""Between two looks at an engine, or for a namespace, that is not there yet."""
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
CHAIN_BYTES = {"blake3": 32, "sha256_cbor": 32, "sha256_cbor_64bit": 8, "builtin": 8}
"""Bytes of a chunk hash; the realm's hash family is named after them."""

CHUNK_TOKENS_MAX = 1 << 20
ALGORITHM = re.compile("[a-z0-9_]{1,32}")
"""What a replica's file can say; anything else a server answers is not an answer."""

Ask = Callable[[str], bytes | None]
"""GET: the body of a 200, or None."""


def ask_over_http(url: str) -> bytes | None:
    """Never through a proxy: replicas are neighbours. VLLM_API_KEY is sent where it is set."""
    key = os.environ.get("VLLM_API_KEY")
    try:
        return download(
            url,
            bytes_max=ANSWER_BYTES_MAX,
            deadline_seconds=ASK_SECONDS,
            headers={"authorization": f"Bearer {key}"} if key else {},
            uses_proxies=False,
        )
    except DownloadError:
        return None


def replica_of(options: argparse.Namespace, seal: Seal, ask: Ask) -> AnnouncedReplica | None:
    """What is to be announced; None while the engine does not answer."""
    if ask(options.url + "/health") is None:
        return None
    model = options.model or _model(ask(options.url + "/v1/models"))
    if not model:
        return None
    chunk, algorithm = _chunks(options, ask)
    return AnnouncedReplica(
        announcer="",
        url=options.url,
        lease_seconds=options.lease_seconds,
        model=model,
        realm=_realm(options, model, algorithm, seal),
        chunk_tokens=chunk,
        hash_algorithm=algorithm,
        kv_bytes_per_token=options.kv_bytes_per_token or _kv_bytes(model),
        kv_world_size=options.kv_world_size,
        object_groups=options.object_groups,
        kv_events_port=options.kv_events_port,
    )


def _chunks(options: argparse.Namespace, ask: Ask) -> tuple[int, str]:
    """Tokens in a chunk and how it is hashed; 0 and empty where nobody says it."""
    chunk, algorithm = options.chunk_tokens, options.hash_algorithm
    if options.lmcache_url and not (chunk and algorithm):
        status = _object(ask(options.lmcache_url + "/status"))
        size, name = status.get("chunk_size"), status.get("hash_algorithm")
        if not chunk and isinstance(size, int) and 0 < size <= CHUNK_TOKENS_MAX:
            chunk = size
        if not algorithm and isinstance(name, str) and ALGORITHM.fullmatch(name):
            algorithm = name
    return chunk, algorithm


def _is_whole(replica: AnnouncedReplica, options: argparse.Namespace) -> bool:
    """Whether LMCache's server, where there is one, has said all that it is asked for."""
    return not options.lmcache_url or bool(replica.chunk_tokens and replica.hash_algorithm)


def _with_more(
    replica: AnnouncedReplica, options: argparse.Namespace, seal: Seal, ask: Ask
) -> AnnouncedReplica:
    """The replica with what LMCache's server says by now; what it said once stays."""
    chunk, algorithm = _chunks(options, ask)
    chunk, algorithm = chunk or replica.chunk_tokens, algorithm or replica.hash_algorithm
    if (chunk, algorithm) == (replica.chunk_tokens, replica.hash_algorithm):
        return replica
    realm = _realm(options, replica.model, algorithm, seal)
    return replace(replica, chunk_tokens=chunk, hash_algorithm=algorithm, realm=realm)


def _object(data: bytes | None) -> Mapping[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _model(data: bytes | None) -> str:
    """The base model as vLLM was told it (`root`); adapters name a parent."""
    cards = _object(data).get("data")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, dict) and not card.get("parent"):
            return str(card.get("root") or card.get("id") or "")
    return ""


def _realm(options: argparse.Namespace, model: str, algorithm: str, seal: Seal) -> str:
    """The realm LMCache's server will open for this model; empty where its hash is not known."""
    size = CHAIN_BYTES.get(algorithm)
    if size is None:
        return ""
    identity = model_identity(model, options.model_identity)
    if not identity.verified:
        log.warning("model %r: %s", model, identity.note)
    descriptor = RealmDescriptor(
        identity.text, identity.verified, options.shard, options.serde, f"lmcache-mp-{size * 8}"
    )
    return descriptor.digest(seal).hex()


def _kv_bytes(model: str) -> int:
    """From the model's config, where it lies here; 0 where it cannot be told."""
    try:
        config = _object((Path(model) / "config.json").read_bytes())
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
        return kv_bytes_per_token(config, DTYPE_BYTES.get(dtype, 2))
    except (OSError, ValueError):
        return 0


def keep_announced(
    options: argparse.Namespace,
    ask: Ask,
    wait: Callable[[float], bool],
    now: Callable[[], float],
) -> None:
    """Until `wait` says that it is time to go. Raises NamespaceError."""
    settings = Settings(root=options.namespace, secret_file=options.secret_file)
    found = _namespace(settings, wait)
    if found is None:
        return
    files = LocalFiles(settings.root, found.profile)
    announcer: Announcer | None = None
    due = float("-inf")
    stopped = has_waited = False
    while not stopped:
        seconds = WAIT_SECONDS
        if announcer is None:
            replica = replica_of(options, found.seal, ask)
            if replica is not None:
                announcer = Announcer(files, found.seal, found.profile, replica, os.urandom)
                log.info("announcing %s, model %s", replica.url, replica.model)
            elif not has_waited:
                has_waited = True
                log.info("waiting: %s does not answer /health, or names no model", options.url)
        elif not _is_whole(announcer.replica, options):
            replica = _with_more(announcer.replica, options, found.seal, ask)
            if replica != announcer.replica:
                announcer.says(replica)
                due = float("-inf")
                log.info(
                    "now with chunks of %d tokens, %s", replica.chunk_tokens, replica.hash_algorithm
                )
        if announcer is not None:
            seconds = min(WAIT_SECONDS, announcer.renew_seconds)
            if ask(options.url + "/health") is None:
                log.warning("%s does not answer: not renewed", options.url)
            else:
                if now() >= due:
                    due = now() + announcer.renew_seconds
                    try:
                        announcer.renew(now())
                    except FileFailure as failure:
                        log.warning("not renewed: %s", failure)
                if _is_whole(announcer.replica, options):
                    seconds = max(0.0, due - now())
        stopped = wait(seconds)
    if announcer is not None:
        announcer.withdraw()


def _namespace(settings: Settings, wait: Callable[[float], bool]) -> Namespace | None:
    """Once the replica has created it; None if it is time to go first."""
    while True:
        try:
            return open_namespace(LocalFiles(settings.root), settings, create=False)
        except NamespaceMissing as missing:
            log.info("waiting: %s", missing)
        except FileFailure as failure:
            raise NamespaceError(f"{settings.root}: {failure}") from failure
        if wait(WAIT_SECONDS):
            return None


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m router.announce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--namespace", required=True, help="root of the namespace")
    add("--url", required=True, help="where routers reach the engine, e.g. http://node7:8000")
    add("--secret-file", help="the namespace's secret, as the replicas have it")
    add("--lmcache-url", default="", help="LMCache server's HTTP address: asked for its settings")
    add("--model", default="", help="the engine's --model, to the letter (default: ask it)")
    add("--model-identity", help="as in the plugin's settings")
    add("--shard", default="", help="as in the plugin's settings")
    add("--serde", default="", help="as in the plugin's settings")
    add("--chunk-tokens", type=int, default=0, help="LMCache's chunk size (default: ask it)")
    add("--hash-algorithm", default="", help="LMCache's hash algorithm (default: ask it)")
    add("--kv-bytes-per-token", type=int, default=0, help="default: from the model's config")
    add("--kv-world-size", type=int, default=1, help="ranks that hold different KV (TP x PP)")
    add("--object-groups", type=int, default=1, help="LMCache object groups of the model")
    add("--kv-events-port", type=int, default=0, help="port of vLLM's KV events, if published")
    add("--lease-seconds", type=int, default=120, help="silence after which it counts as dead")
    options = parser.parse_args(words)
    try:
        options.url = replica_at(options.url).url
    except ReplicaError as error:
        parser.error(f"--url: {error}")
    try:
        check_secret(options.secret_file)
    except SettingsError as error:
        parser.error(str(error))
    options.lmcache_url = options.lmcache_url.rstrip("/")
    options.namespace = os.path.abspath(options.namespace)
    return options


def main(words: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    options = _arguments(words)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        keep_announced(options, ask_over_http, stop.wait, time.monotonic)
    except (SharedFSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
