"""`du`: what a home takes on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    existing_home,
    print_rows,
    say,
    size,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.flows.disk.parts import Use
    from permafrost.flows.disk.use import By

_SUMS: dict[By, str] = {
    "backbone": "Each feature store counts for the backbone that filled it.",
    "recipe": "Each feature store counts for its recipe.",
    "array": "Each array is that of all feature stores together.",
    "corpus": "Texts that several corpora have are counted once, in a row of their own; a store may have a "
    "text twice after a pull. 'with shared' is what a corpus would take alone.",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(du)


def du(
    by: Annotated[
        str,
        typer.Option(
            help="What to add up: place (array of a store, stage), backbone, recipe, corpus or array."
        ),
    ] = "place",
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """What a home takes: blocks really allocated on disk, or bytes of objects; the largest first."""
    from permafrost.flows.disk.use import GROUPINGS, disk_use
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.storage.replica import public_name

    grouping: By | None = next((g for g in GROUPINGS if g == by), None)
    if grouping is None:
        raise InputError(f"--by is {quoted(by)}; give one of {', '.join(GROUPINGS)}")
    root = existing_home(home)
    with Display(console) as display:
        rows = disk_use(root, grouping, NodeProgress(display, "read the texts of corpora"))
    total = sum(row.bytes for row in rows)
    if json:
        emit({"by": grouping, "rows": [row.as_json() for row in rows], "total": total})
        return
    _print(rows, grouping)
    say(f"total {size(total)} in {public_name(root)}")
    if grouping in _SUMS:
        say(_SUMS[grouping])


def _print(rows: list[Use], by: By) -> None:
    match by:
        case "place":
            columns = ["where", "what", "size"]
            cells = [[row.where, row.what, size(row.bytes)] for row in rows]
        case "corpus":
            columns = ["corpus", "n texts", "size", "n with shared"]
            cells = [
                [row.what, _count(row.n_texts), size(row.bytes), _size(row.with_shared)]
                for row in rows
            ]
        case _:
            columns = [by, "size"]
            cells = [[row.what, size(row.bytes)] for row in rows]
    print_rows("Disk use", columns, cells)


def _count(n: int | None) -> str:
    return "" if n is None else f"{n:,}"


def _size(n_bytes: int | None) -> str:
    return "" if n_bytes is None else size(n_bytes)
