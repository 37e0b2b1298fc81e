"""The command `sharedfs-router`, also `python -m router`.

Options become `Settings`; keys come from files or the environment, never from the command line,
which every user of a machine can read. One process serves itself; with `--workers` this one
supervises. Exit status: 0 ended by a signal, 2 it could not start like this (the text says why);
a signal that comes while it starts ends it as any program.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from router import fleet
from router.app import App, Place
from router.board import Board
from router.settings import Settings, SettingsError
from router.sources import check_secret
from router.supervisor import END_NOW, supervise

log = logging.getLogger(__name__)

API_KEY_VARIABLE = "SHAREDFS_ROUTER_API_KEY"
REPLICA_KEY_VARIABLE = "SHAREDFS_ROUTER_REPLICA_KEY"
WORKER_VARIABLE = "SHAREDFS_ROUTER_WORKER"
"""`number:port:board:supervisor:directory`; set by the supervisor for its workers."""

KEY_CHARACTERS_MAX = 64 << 10
"""More fits in no head; what has no end, as a device, must not fill memory."""
ORPHAN_SECONDS = 1.0
BEAT_SECONDS = 1.0
GC_THRESHOLDS = (20_000, 50, 20)
"""A request makes some twenty objects that stay while it is answered, or in the tree of prefixes,
and no cycles: the usual 700 has Python look through them all the time, 5 to 10 us a request."""

MALLOC_OPTIONS = {-1: 16 << 20, -3: 1 << 20}
"""glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD. With its own values the memory of a body of 64 KB
goes back to the kernel after nearly every request and comes anew, page by page: 5 us a request."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def run(
    replicas: Annotated[str, typer.Option(help="URLs, separated by commas.")] = "",
    replica_file: Annotated[
        str | None, typer.Option(help="A file (or URL) with one URL a line; read again.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="The root in which replicas announce themselves.")
    ] = None,
    secret_file: Annotated[str | None, typer.Option(help="The namespace's secret.")] = None,
    model: Annotated[str | None, typer.Option(help="Of a namespace: only this model's.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 9000,
    workers: Annotated[int, typer.Option(help="Processes on the port.")] = 1,
    policy: Annotated[str, typer.Option(help="How a replica is chosen.")] = "ttft",
    slo_seconds: Annotated[
        float | None, typer.Option(help="429 where the first token would take longer.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Exact mode: the directory of the model's tokenizer.")
    ] = None,
    kv_events: Annotated[bool, typer.Option(help="Subscribe to announced KV events.")] = False,
    no_load_params: Annotated[
        str | None,
        typer.Option(help="JSON: kv_transfer_params that ask an engine not to load."),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help=f"Or in {API_KEY_VARIABLE}.")] = None,
    replica_key_file: Annotated[
        Path | None, typer.Option(help=f"Or in {REPLICA_KEY_VARIABLE}.")
    ] = None,
    body_mib_max: Annotated[int, typer.Option(help="Larger requests get 413.")] = 64,
    retries_max: Annotated[int, typer.Option(help="Other replicas tried.")] = 2,
    first_byte_seconds_max: Annotated[
        float, typer.Option(help="A replica silent for so long has failed.")
    ] = 1800.0,
    drain_seconds: Annotated[
        float, typer.Option(help="SIGTERM lets streams finish for so long.")
    ] = 30.0,
    health_seconds: Annotated[float, typer.Option(help="Between two probes.")] = 1.0,
    health_path: Annotated[str, typer.Option(help="What is probed.")] = "/health",
    scrape_seconds: Annotated[float, typer.Option(help="Between two looks at metrics.")] = 1.0,
    list_seconds: Annotated[float, typer.Option(help="Between two looks at the list.")] = 1.0,
) -> None:
    """An OpenAI-compatible load balancer: least estimated time to first token."""
    place = _place()
    if place is not None:  # the supervisor has read them
        api_key_file = replica_key_file = None
    try:
        settings = Settings(
            replicas=tuple(url for url in replicas.split(",") if url.strip()),
            replica_file=replica_file,
            namespace=namespace,
            secret_file=secret_file,
            model=model,
            host=host,
            port=port,
            workers=workers,
            policy=policy,
            slo_seconds=slo_seconds,
            tokenizer=tokenizer,
            kv_events=kv_events,
            no_load_params=no_load_params,
            api_key=key_from(api_key_file, API_KEY_VARIABLE),
            replica_key=key_from(replica_key_file, REPLICA_KEY_VARIABLE),
            body_bytes_max=body_mib_max << 20,
            retries_max=retries_max,
            first_byte_seconds_max=first_byte_seconds_max,
            drain_seconds=drain_seconds,
            health_seconds=health_seconds,
            health_path=health_path,
            scrape_seconds=scrape_seconds,
            list_seconds=list_seconds,
        )
        status = _run(settings, place)
    except SettingsError as error:
        typer.echo(f"sharedfs-router: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(status)


def key_from(path: Path | None, variable: str) -> str | None:
    if path is None:
        return os.environ.get(variable)
    try:
        with path.open() as file:
            return file.read(KEY_CHARACTERS_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the key's file: {error}") from error


def _run(settings: Settings, place: Place | None) -> int:
    if settings.workers > 1 and place is None:
        check_secret(settings.secret_file)
        keys = {API_KEY_VARIABLE: settings.api_key, REPLICA_KEY_VARIABLE: settings.replica_key}
        given = {variable: key for variable, key in keys.items() if key is not None}
        return supervise(
            partial(_start_worker, given),
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            drain_seconds=settings.drain_seconds,
        )
    _raise_descriptors()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, place or Place()))
    return 0


def _place() -> Place | None:
    text = os.environ.get(WORKER_VARIABLE)
    if text is None:
        return None
    number, port, board, parent, folder = text.split(":", 4)
    return Place(Path(folder), int(number), int(port), Board(int(board)), int(parent))


def _start_worker(
    keys: Mapping[str, str], number: int, port: int, folder: Path, board: Board
) -> subprocess.Popen[bytes]:
    """`keys` by their variables: files are read once, by the supervisor. A pipe can only be, and so
    a process started again has the others' keys."""
    where = f"{number}:{port}:{board.descriptor}:{os.getpid()}:{folder}"
    environment = {**os.environ, **keys, WORKER_VARIABLE: where}
    # The very command this process was started with: the same code runs, compiled or not.
    command = [sys.executable, *sys.orig_argv[1:]]
    # A group of its own: a terminal's Ctrl-C reaches it once, through the supervisor.
    return subprocess.Popen(command, env=environment, process_group=0, pass_fds=(board.descriptor,))


def _raise_descriptors() -> None:
    """As many as the system lets us have open: the usual 1,024 are 448 clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # then with what there is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings, place: Place) -> None:
    """Until SIGTERM or SIGINT; a second one, or the supervisor's order, ends the drain at once.
    SIGHUP drains too, unless it is ignored (nohup); a terminal sends more than one of them."""
    router = App(settings, place)
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    told = (signal.SIGTERM, signal.SIGINT)
    orders = told if place.supervisor is None else (END_NOW,)
    loop = asyncio.get_running_loop()
    orphaned: asyncio.Task[None] | None = None
    if place.supervisor is not None:
        orphaned = asyncio.create_task(_until_orphaned(place.supervisor, signals))
    beating: asyncio.Task[None] | None = None
    if place.board is not None:
        beating = asyncio.create_task(_beat(place.board, place.number))
    try:
        await router.start()
        # Not sooner: a start that a dead file system holds up must end as any program does.
        hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in {*told, *orders, *((signal.SIGHUP,) if hung_up else ())}:
            loop.add_signal_handler(number, signals.put_nowait, number)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        _keep_memory()
        code = "plain Python" if fleet.__file__.endswith(".py") else "compiled"
        if orphaned is None:  # else the supervisor says it, of all of them
            log.info("listening on %s:%d, %s", settings.host, router.port, code)
        else:
            log.info("process %d of %d, %s", place.number + 1, settings.workers, code)
        await signals.get()
        log.info("draining for at most %g s", settings.drain_seconds)
        drained = asyncio.create_task(router.drain(settings.drain_seconds))
        again = asyncio.create_task(_until_one_of(orders, signals))
        await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, again):
            task.cancel()
        await asyncio.gather(drained, again, return_exceptions=True)
    finally:
        for watching in (orphaned, beating):
            if watching is not None:
                watching.cancel()
        await router.close()
        if place.folder is not None and os.getppid() != place.supervisor:
            # Nobody else will: the other processes end too.
            shutil.rmtree(place.folder, ignore_errors=True)


def _keep_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # else it is another libc
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)


async def _until_one_of(
    orders: Collection[signal.Signals], signals: asyncio.Queue[signal.Signals]
) -> None:
    while await signals.get() not in orders:
        pass  # told again to do what is being done


async def _until_orphaned(parent: int, signals: asyncio.Queue[signal.Signals]) -> None:
    """A worker whose supervisor was killed, however early, ends as if told to."""
    while os.getppid() == parent:
        await asyncio.sleep(ORPHAN_SECONDS)
    signals.put_nowait(signal.SIGTERM)


async def _beat(board: Board, number: int) -> None:
    """Says to the supervisor that this loop turns; `App.start` says it first."""
    while True:
        if board.beats(number):
            board.beat(number)
        await asyncio.sleep(BEAT_SECONDS)


def main() -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    app(prog_name="sharedfs-router")
