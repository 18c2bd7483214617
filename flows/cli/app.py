"""`permafrost`: commands, their common flags and their exit codes: 0 done, 1 failed, 2 wrong input, 129,
130 and 143 stopped by SIGHUP, Ctrl-C and SIGTERM (flows.stopping)."""

import errno
import logging
import sys
from typing import Annotated

import typer
from rich.text import Text

from permafrost.flows.cli import (
    across,
    comparison,
    disk,
    experiments,
    export,
    history,
    inspection,
    listings,
    maintenance,
    prediction,
    removal,
    sharing,
    statistics,
    texts,
)
from permafrost.flows.cli.wrong_usage import Commands
from permafrost.flows.quiet import is_foreseen, set_quiet_defaults
from permafrost.flows.stopping import STOP
from permafrost.flows.streams import print_any_character
from permafrost.flows.terminal import Terminal, echo
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.quoting import shortened
from permafrost.storage.removal import removal_named

_NOT_POSSIBLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
}
"""What the system says of a place that cannot be read or written as asked: the user chose it."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What it says of a full disk, where no writer of ours has said what it was writing."""

app = typer.Typer(
    name="permafrost",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (
    experiments,
    texts,
    prediction,
    export,
    comparison,
    across,
    history,
    listings,
    inspection,
    statistics,
    sharing,
    disk,
    maintenance,
    removal,
):
    module.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        # Imported here: it takes a while, and no command needs it.
        from importlib.metadata import version

        echo(version("permafrost"))
        raise typer.Exit


@app.callback()
def permafrost(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run a frozen transformer once, keep what it computed, try many heads on it."""


def _tells_more(record: logging.LogRecord) -> bool:
    """Whether a record of Prefect's says more than the line that ends a command: not the final state of a
    run that failed or was stopped, and no traceback of an error that is expected. That of another is kept."""
    return not (
        STOP.asked or is_foreseen(record) or "Finished in state Failed" in record.getMessage()
    )


def main() -> None:
    """Run the command that the arguments name."""
    print_any_character()
    set_quiet_defaults()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_tells_more)
    errors = Terminal(stderr=True, soft_wrap=True)
    try:
        with removal_named():
            app()
    except PermafrostError as error:
        if STOP.asked:
            raise
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        _say(errors, f"{error}{notes}")
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:
        if error.errno in _NO_ROOM:
            where = f" for {error.filename}" if error.filename else ""
            _say(
                errors, f"no room on the disk{where}: {error.strerror}; free some, and run it again"
            )
            sys.exit(1)
        if error.errno not in _NOT_POSSIBLE:
            raise
        todo = "choose another place"
        if error.errno in (errno.EACCES, errno.EPERM):
            todo = f"ask its owner for permission, or {todo}"
        _say(errors, f"{error.filename or 'a file'}: {error.strerror}; {todo}")
        sys.exit(2)


def _say(errors: Terminal, message: str) -> None:
    errors.print(Text("error: ", "bold red"), end="")
    errors.print(shortened(message))
