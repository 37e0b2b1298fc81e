"""The command `sharedfs`: what an operator does to a namespace by hand.

    commands.py   the commands and their options, one screen each
    fitting.py    `fit`, which looks at a mount and not at a namespace
    staging.py    `stage`, which looks at two
    options.py    from command line words to checked Settings
    output.py     tables, JSON, progress and errors: the only place that prints
    sizes.py      "500GiB" to bytes and back

It only calls `tools` and prints what comes back. Exit statuses are part of the interface and stand
in `output.Status`. Later commands join `commands.app`.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from sharedfs_backend.cli.commands import app

    app()
