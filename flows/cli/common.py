"""Flags and small renderings that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from storage.errors import InputError

DEFAULT_HOME = ".permafrost"

HomeFlag = Annotated[
    str,
    typer.Option("--home", envvar="PERMAFROST_HOME", help="Where features and artifacts are kept."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field of the experiment: path.to.field=value."),
]

console = Console()


def home_folder(home: str) -> Path:
    """The folder of a home.

    Raises:
        InputError: the home is a URL or a file.
    """
    if "://" in home:
        raise InputError(
            f"--home {home}: homes on an object store are not supported by this version; give a folder "
            f"(a mounted bucket works if it supports rename and flock)"
        )
    path = Path(home)
    if path.exists() and not path.is_dir():
        raise InputError(f"--home {home} is a file; give a folder")
    return path


def emit(value: Any) -> None:
    """Print JSON for other programs."""
    typer.echo(json.dumps(value, indent=1, default=_refuse))


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def size(n_bytes: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.2f} TB"


def table(title: str, *columns: str) -> Table:
    """An empty table in the house look."""
    out = Table(
        title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False
    )
    for name in columns:
        out.add_column(name, justify="right" if name.startswith("n ") or name == "size" else "left")
    return out
