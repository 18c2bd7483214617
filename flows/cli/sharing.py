"""`push` and `pull`: feature stores, and parts of them, from one home to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    WaitFlag,
    console,
    emit,
    existing_home,
    home_folder,
    print_rows,
    say,
    size,
)

if TYPE_CHECKING:
    from permafrost.flows.sharing import Copied, Wanted

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Store id, or its beginning; not needed where there is only one store."
    ),
]
ArraysFlag = Annotated[
    str,
    typer.Option(
        help="Which arrays, names or patterns with commas: 'hidden/3,hidden/6', 'hidden/*'."
    ),
]
CorpusFlag = Annotated[
    str | None,
    typer.Option(
        help="Only segments that hold texts of this task, or of corpus/<key>; they are copied whole, and the "
        "corpus with its labels."
    ),
]
AsFlag = Annotated[
    Literal["home", "dataset"],
    typer.Option(
        "--as", help="dataset: a folder with a card, to be uploaded to the Hugging Face hub."
    ),
]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(push)
    app.command()(pull)


def push(
    to: Annotated[
        str, typer.Option("--to", help="The other home: a folder or a URL.", show_default=False)
    ],
    name: NameArgument = None,
    arrays: ArraysFlag = "*",
    corpus: CorpusFlag = None,
    form: AsFlag = "home",
    dry_run: DryRunFlag = False,
    wait: WaitFlag = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Copy what another home lacks of a feature store, or of a part of it, to there."""
    source = existing_home(home)
    _copy(source, home_folder(to), _wanted(name, arrays, corpus), dry_run, wait, json, form)


def pull(
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help="The other home: a folder, a URL, or hf://datasets/OWNER/NAME.",
            show_default=False,
        ),
    ],
    name: NameArgument = None,
    arrays: ArraysFlag = "*",
    corpus: CorpusFlag = None,
    dry_run: DryRunFlag = False,
    wait: WaitFlag = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Copy what this home lacks of another home's feature store, or of a part of it, to here."""
    from permafrost.storage.object_stores import HUB

    source = _downloaded(from_) if from_.startswith(HUB) else existing_home(from_, "--from")
    _copy(source, home_folder(home), _wanted(name, arrays, corpus), dry_run, wait, json)


def _wanted(name: str | None, arrays: str, corpus: str | None) -> Wanted:
    from permafrost.flows.sharing import wanted_of

    return wanted_of(name, arrays, corpus)


def _downloaded(name: str) -> Path:
    from permafrost.flows.dataset_folder import downloaded

    return existing_home(str(downloaded(name)), "--from")


def _copy(
    source: Path,
    target: Path,
    wanted: Wanted,
    dry_run: bool,
    wait: bool,
    json: bool,
    form: Literal["home", "dataset"] = "home",
) -> None:
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.flows.sharing import copy_between, would_copy

    if dry_run:
        done = would_copy(source, target, wanted, form)
    else:
        with Display(console) as display:
            done = copy_between(
                source,
                target,
                wanted,
                lambda label: NodeProgress(display, label),
                "wait" if wait else "end",
                form,
            )
    if json:
        emit({**done.as_json(), "dry_run": dry_run})
        return
    _say(done, "would copy" if dry_run else "copied")


def _say(done: Copied, verb: str) -> None:
    found = done.as_json()
    title = f"features/{done.store_id[:12]}: {done.source} > {done.target}"
    if found["arrays"]:
        rows = [
            (row["array"], f"{row['n_segments']:,}", size(row["bytes"])) for row in found["arrays"]
        ]
        print_rows(title, ("array", "n segments", "size"), rows)
    else:
        say(title)
    say(
        f"{verb} {found['n_cells']:,} cells ({size(found['bytes'])}) of {found['n_segments']:,} segments "
        f"with {found['n_texts']:,} texts; {found['n_cells_present']:,} cells were there already"
    )
    if found["corpus"] is not None:
        say(f"and the texts, examples and labels of {found['corpus'][:19]}")
    if n := found["n_cells_damaged"]:
        say(f"{n:,} of them replace{'s' if n == 1 else ''} what was damaged there")
    if n := found["n_cells_lacking"]:
        say(f"{n:,} cells are not in {done.source} and can be extracted")
    if n := found["n_texts_unknown"]:
        say(f"{n:,} texts of the corpus are not in the store")
    if n := found["n_texts_elsewhere"]:
        say(
            f"{n:,} of the texts are in other segments of {done.target} too; what these lack, an extraction "
            "adds"
        )
