"""Flags and small renderings that several commands share."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from permafrost.flows.cli import STARTED_S
from permafrost.flows.terminal import Terminal, echo
from permafrost.storage import paths
from permafrost.storage.quoting import visible

DEFAULT_HOME = paths.DEFAULT_HOME

HomeFlag = Annotated[
    str,
    typer.Option(
        "--home",
        envvar=paths.HOME_VARIABLE,
        help="Where features and artifacts are kept: a folder, or a URL such as s3://bucket/prefix.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field of the experiment: path.to.field=value."),
]
PluginsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        help="Python file that adds kinds, as in 'plugins' of an experiment; may be repeated. Code that a "
        "home's heads or recipes need is never taken from the home.",
    ),
]
MovedBackboneFlag = Annotated[
    str | None, typer.Option("--backbone", help="Where the backbone is now, if it moved.")
]
WaitFlag = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="If another process writes the same features, wait until it has finished instead of ending.",
    ),
]

console = Terminal()


def home_folder(home: str) -> Path:
    """The folder of a home; a home on an object store is mirrored in a folder first.

    Raises:
        InputError: the home is a file, or a URL that cannot be used.
    """
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.flows.home import open_home

    with Display(console) as display:
        return open_home(home, NodeProgress(display, f"pull {home}"))


def existing_home(home: str, by: str = "--home or PERMAFROST_HOME") -> Path:
    """The folder of a home that is only read; `by` is what names it, for messages.

    Raises:
        NotFoundError: there is no home.
        InputError: as `home_folder`.
    """
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.flows.home import open_existing_home

    with Display(console) as display:
        return open_existing_home(home, NodeProgress(display, f"pull {home}"), by)


def load_plugins(files: list[str] | None) -> None:
    """Load the files of `--plugins`.

    Raises:
        InputError: a file cannot be read or run, or defines no kind.
    """
    if files:
        # Imported here: it takes seconds, and few commands need it.
        from permafrost.flows.experiment import loaded_plugins

        loaded_plugins(tuple(files))


def seconds_since_start() -> float:
    """Wall time of the command so far, start-up included."""
    return time.monotonic() - STARTED_S


def emit(value: Any) -> None:
    """Print JSON for other programs."""
    echo(json.dumps(value, indent=1, default=_refuse))


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def size(n_bytes: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.2f} TB"


def say_cut(n_truncated: int) -> None:
    """Print how many texts were cut, if any was."""
    if n_truncated:
        console.print(
            f"{n_truncated:,} texts are longer than max_length and were cut at their end",
            highlight=False,
        )


def say_path(path: object) -> None:
    """Print a path by itself, for people and for scripts."""
    echo(visible(str(path)))


def table(title: str, *columns: str) -> Table:
    """An empty table in the house look."""
    out = Table(
        title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False
    )
    for name in columns:
        out.add_column(name, justify="right" if name.startswith("n ") or name == "size" else "left")
    return out


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, or, where it is wider than the terminal, a line for each row, so that nothing is cut.

    Of thousands of rows in a moment, for which rich's tables take seconds.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    names = [name.removeprefix("n ") for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *shown, strict=True)]
    console.print(title)
    if sum(widths) + len(_GAP) * (len(widths) - 1) > console.width:
        for row in shown:
            named = zip(names, row, strict=True)
            echo(", ".join(f"{name} {value}" for name, value in named if value))
        return
    numbers = [name in _NUMBERS or name.startswith("n ") for name in columns]
    console.print(Text(_aligned(names, widths, numbers), "bold"))
    for row in shown:
        echo(_aligned(row, widths, numbers))


_GAP = "  "
_NUMBERS = ("size", "dev", "test")


def _aligned(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    cells: list[str] = []
    for cell, width, is_number in zip(row, widths, numbers, strict=True):
        space = " " * (width - cell_len(cell))
        cells.append(space + cell if is_number else cell + space)
    return _GAP.join(cells).rstrip()


def say(line: str) -> None:
    """Print a line of text; the terminal breaks it where it is too long."""
    console.print(line, soft_wrap=True)
