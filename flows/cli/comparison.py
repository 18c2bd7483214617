"""`compare`: what got better or worse between two runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    existing_home,
    home_folder,
)
from permafrost.flows.terminal import echo

SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A run, mine@2; an experiment's name, for its latest run; a report's id, which may be "
        "shortened; or a results.parquet.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(
    a: SourceArgument,
    b: SourceArgument,
    home: HomeFlag = DEFAULT_HOME,
    home_b: Annotated[
        str | None, typer.Option("--home-b", help="Home of B, if it is another one.")
    ] = None,
    format_: Annotated[
        Literal["table", "markdown", "latex"],
        typer.Option("--format", help="How to print."),
    ] = "table",
    json: JsonFlag = False,
) -> None:
    """Say what got better or worse from A to B, and whether the difference is beyond noise."""
    # Imported here: other listings need none of it.
    from permafrost.flows.comparison import table
    from permafrost.flows.comparison.comparing import compare_sources
    from permafrost.stages.metrics.bootstrap import BootstrapConfig

    homes = (_home_of(a, home), _home_of(b, home if home_b is None else home_b))
    comparison = compare_sources(a, b, *homes, BootstrapConfig())
    if json:
        emit(table.as_json(*comparison))
        return
    match format_:
        case "table":
            console.print(table.as_text(*comparison))
        case "markdown":
            echo(table.as_markdown(*comparison), end="")
        case "latex":
            echo(table.as_latex(*comparison), end="")


def _home_of(source: str, home: str) -> Path:
    """The home of one side; a table of results may be compared without one."""
    return home_folder(home) if Path(source).exists() else existing_home(home)
