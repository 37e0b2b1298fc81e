"""The commands of `sharedfs`, one function each: options in, a tool called, its result shown.

Exit status: 0 done; 1 done, and damage was found; 2 wrong option or setting; 3 the namespace
cannot be used; 130 interrupted. With --json the one object on standard output is stable: fields
are only ever added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sharedfs_backend import tools
from sharedfs_backend.cli import fitting, staging
from sharedfs_backend.cli.options import (
    require_directory,
    settings_for,
    share_as_the_namespace,
    stripe_layout,
)
from sharedfs_backend.cli.output import Output, Status
from sharedfs_backend.cli.sizes import parse_size, show_size
from sharedfs_backend.exceptions import SharedFSError
from sharedfs_backend.files import FileFailure
from sharedfs_backend.settings import Settings

app = typer.Typer(
    name="sharedfs",
    help="One KV cache namespace on a shared file system, for many vLLM replicas.",
    epilog="Exit status: 0 done; 1 damage found; 2 wrong option; 3 namespace unusable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Root = Annotated[str, typer.Argument(help="Directory of the namespace.", metavar="ROOT")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SecretFile = Annotated[
    str | None, typer.Option(help="File holding the namespace's secret.", metavar="FILE")
]
ProfileName = Annotated[
    str | None, typer.Option(help="File system profile to use instead of the probed one.")
]
Config = Annotated[
    Path | None, typer.Option(help="JSON file of settings, as an engine's.", metavar="FILE")
]
Assign = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting; may be repeated.", metavar="NAME=VALUE"),
]


def _run(as_json: bool, act: Callable[[Output], Status]) -> None:
    """Carry out one command; every expected error becomes a message and a status."""
    output = Output(as_json)
    try:
        status = act(output)
    except (SharedFSError, FileFailure, KeyboardInterrupt) as error:
        status = output.error(error)
    raise typer.Exit(int(status))


@app.command()
def init(
    root: Root,
    cap: Annotated[
        str | None, typer.Option(help="Most it may hold, e.g. 800GiB.", metavar="SIZE")
    ] = None,
    stripe: Annotated[
        str | None,
        typer.Option(
            help="On Lustre, options of `lfs setstripe` for packs; none: the file system's own.",
            metavar="OPTIONS",
        ),
    ] = None,
    secret_file: SecretFile = None,
    profile: ProfileName = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Create a namespace, or change the cap of one. Safe to repeat, and to race."""

    def act(output: Output) -> Status:
        settings = _settings(root, secret_file, profile, config, assign)
        cap_bytes = None if cap is None else parse_size("--cap", cap)
        dataclasses.replace(settings, cap_bytes=cap_bytes)  # checks its bounds
        layout = None if stripe is None else stripe_layout(stripe)
        share_as_the_namespace(settings)
        _show_listing(output, tools.init(settings, cap_bytes=cap_bytes, layout=layout))
        return Status.OK

    _run(as_json, act)


@app.command()
def ls(
    root: Root,
    secret_file: SecretFile = None,
    profile: ProfileName = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Show what a namespace holds. Reads journals and snapshots, no packs."""

    def act(output: Output) -> Status:
        settings = _settings(root, secret_file, profile, config, assign)
        require_directory(settings)
        _show_listing(output, tools.listing(settings))
        return Status.OK

    _run(as_json, act)


def _show_listing(output: Output, listing: tools.Listing) -> None:
    output.result(
        dataclasses.asdict(listing),
        [
            ("namespace", listing.root),
            ("file system profile", listing.profile),
            ("cap", show_size(listing.cap_bytes)),
            ("packs", f"{listing.pack_count:,} ({show_size(listing.live_bytes)})"),
            ("chunks", f"{listing.chunk_count:,}"),
            ("dropped, not gone", show_size(listing.dropped_bytes)),
            ("journals", show_size(listing.journal_bytes)),
            ("snapshots", f"{listing.snapshots} ({show_size(listing.snapshot_bytes)})"),
            ("writers", f"{listing.writers_known} known, {listing.writers_ended} of them ended"),
        ],
        [(realm, f"{packs:,}") for realm, packs in sorted(listing.realms.items())],
        ("realm", "packs"),
    )


@app.command()
def verify(
    root: Root,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Check headers and trailers, not every byte.")
    ] = False,
    secret_file: SecretFile = None,
    profile: ProfileName = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Read every pack and check it. Changes nothing; exit status 1 if anything is damaged."""

    def act(output: Output) -> Status:
        settings = _settings(root, secret_file, profile, config, assign)
        require_directory(settings)
        with output.progress("verifying", "packs") as progress:
            report = tools.verify(settings, progress=progress, payload=not headers_only)
        _show_report(output, report)
        # A pack nobody names may just be in the making.
        return Status.PROBLEMS if report.counts.keys() - {"unnamed"} else Status.OK

    _run(as_json, act)


@app.command()
def reindex(
    root: Root,
    secret_file: SecretFile = None,
    profile: ProfileName = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Record packs that no journal names, after journals were lost. Removes nothing."""

    def act(output: Output) -> Status:
        settings = _settings(root, secret_file, profile, config, assign)
        require_directory(settings)
        share_as_the_namespace(settings)
        with output.progress("reindexing", "packs") as progress:
            report = tools.reindex(settings, progress=progress)
        _show_report(output, report)
        return Status.PROBLEMS if report.counts["unreadable"] else Status.OK

    _run(as_json, act)


def _show_report(output: Output, report: tools.Report) -> None:
    shown: list[tuple[str, object]] = [
        ("packs", f"{report.packs:,}"),
        ("chunks", f"{report.chunks:,}"),
    ]
    if report.payload_bytes:
        shown.append(("payload read", show_size(report.payload_bytes)))
    shown += [(kind, f"{count:,}") for kind, count in sorted(report.counts.items())]
    fields = dataclasses.asdict(report) | {"counts": dict(report.counts)}
    output.result(fields, shown, report.problems, ("pack", "problem"))


@app.command()
def gc(
    root: Root,
    to: Annotated[
        str | None,
        typer.Option(
            help="Sweep down to this size (default: the cap's low watermark).", metavar="SIZE"
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="First watch for one lease, then clear what dead writers left, too."
        ),
    ] = False,
    secret_file: SecretFile = None,
    profile: ProfileName = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Drop the least valuable packs and clear what is superfluous. Takes at least the drop delay.

    Ages count from when gc first sees a pack, unless a snapshot tells more: without --watch,
    only what is known to be older than the drop delay goes. Lease and drop delay must be the
    fleet's: pass the engines' --config, or --set them.
    """

    def act(output: Output) -> Status:
        settings = _settings(root, secret_file, profile, config, assign)
        require_directory(settings)
        to_bytes = None if to is None else parse_size("--to", to)
        share_as_the_namespace(settings)
        with output.progress("waiting", "seconds") as progress:
            done = tools.gc(settings, to_bytes=to_bytes, watch=watch, progress=progress)
        _show_collected(output, done)
        return Status.OK

    _run(as_json, act)


def _show_collected(output: Output, done: tools.Collected) -> None:
    output.result(
        dataclasses.asdict(done),
        [
            ("before", show_size(done.bytes_before)),
            ("after", show_size(done.bytes_after)),
            ("packs dropped", f"{done.packs_dropped:,}"),
            ("packs unlinked", f"{done.packs_unlinked:,}"),
            ("orphans adopted", f"{done.orphans_adopted:,}"),
            ("orphans removed", f"{done.orphans_removed:,}"),
            ("snapshots written", f"{done.snapshots_written:,}"),
            ("journals retired", f"{done.journals_retired:,}"),
        ],
    )


@app.command()
def stage(
    source: Annotated[str, typer.Option("--from", help="Namespace to copy from.", metavar="ROOT")],
    target: Annotated[
        str, typer.Option("--to", help="Namespace to copy to; made if need be.", metavar="ROOT")
    ],
    at_most: Annotated[
        str | None, typer.Option("--bytes", help="Most to have there, e.g. 2TB.", metavar="SIZE")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Be done after so many seconds, whatever is left.", metavar="SECONDS"),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Deal the work to the nodes of the Ray cluster here.")
    ] = False,
    source_library: Annotated[
        str | None,
        typer.Option("--from-library", help="Client library that sees --from.", metavar="FILE"),
    ] = None,
    target_library: Annotated[
        str | None,
        typer.Option("--to-library", help="Client library that sees --to.", metavar="FILE"),
    ] = None,
    secret_file: SecretFile = None,
    config: Config = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Copy the most valuable packs of one namespace to another, those last dropped first.

    Safe to stop and to repeat: what is there is left out. Settings hold for both namespaces; each
    has its own cap, profile and client library. Exit status 1 if something chosen could not be
    copied; a deadline that ended it is no failure.
    """

    def act(output: Output) -> Status:
        both = staging.with_libraries(
            _settings(source, secret_file, None, config, assign),
            _settings(target, secret_file, None, config, assign),
            source_library,
            target_library,
        )
        bytes_max = None if at_most is None else parse_size("--bytes", at_most)
        return staging.stage_and_show(*both, bytes_max, deadline, ray, output)

    _run(as_json, act)


@app.command()
def fit(
    path: Annotated[  # no Path: typer would stat it, and a mount may hang
        str, typer.Option(help="Directory on the mount in question.", metavar="DIR")
    ],
    model: Annotated[
        Path, typer.Option(help="A model's config.json, or its directory.", metavar="CONFIG")
    ],
    prefill_tokens_per_second: Annotated[
        float, typer.Option(help="Prompt tokens one replica computes per second.", metavar="X")
    ],
    at_tokens: Annotated[
        int, typer.Option(help="Prompt length that speed was measured at.", min=1, metavar="N")
    ] = fitting.SPEED_TOKENS,
    kv_dtype: Annotated[
        str, typer.Option(help="Of the KV: auto (the model's), fp8, float16, bfloat16, float32.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Say whether a mount can pay for a model: probes it for under a minute.

    Exit status 1 if computing is quicker at every length. Writes below DIR (400 MB at most) and
    removes what it wrote; DIR need not be a namespace.
    """
    question = fitting.Question(Path(path), model, prefill_tokens_per_second, at_tokens, kv_dtype)
    _run(as_json, lambda output: fitting.answer(question, output))


def _settings(
    root: str,
    secret_file: str | None,
    profile: str | None,
    config: Path | None,
    assign: list[str] | None,
) -> Settings:
    return settings_for(
        root,
        secret_file=secret_file,
        profile=profile,
        config=config,
        assignments=assign or (),
    )
