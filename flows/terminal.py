"""Terminal output: user text shown literally, without markup or control codes, and the results as a table."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from permafrost.flows.streams import is_unread, let_go
from permafrost.stages.report.chance import chance_words
from permafrost.stages.report.entries import DASH, TIED
from permafrost.storage.quoting import visible

NAME_WIDTH = 21
"""Longer names are wrapped, so that four columns of numbers fit into 80 characters."""


class Terminal(Console):
    """A console that prints strings literally; styled text has to be a `rich.text.Text`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """As the parent, with control characters made visible."""
        return super().render_str("\n".join(map(visible, text.split("\n"))), **settings)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """As the parent, which writes here what was printed; to a terminal that was closed, nowhere."""
        try:
            super().__exit__(kind, error, trace)
        except OSError as failure:
            if not is_unread(cast(TextIO, self.file), failure):
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """What follows is dropped, and the command goes on to an end of its own; the parent's exits."""
        self.quiet = True
        let_go(cast(TextIO, self.file))


def echo(text: str, end: str = "\n") -> None:
    """Print text as it is; nowhere if standard output was closed, or nobody reads it any more."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        if not is_unread(sys.stdout, error):
            raise
        let_go(sys.stdout)


def render(title: str, summary: dict[str, Any]) -> Table:
    """A table of methods and controls by task: test metric times 100, mean ± sd over seeds, best in bold.

    What an answer without knowledge scores and the class shares in test are below.
    """
    # Text, not strings, in which a console would interpret brackets as markup.
    table = Table(
        title=Text(visible(title), "table.title") if title else None,
        title_justify="left",
        header_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("", max_width=NAME_WIDTH, overflow="fold")
    means = [(a["heading"], a["metric"]) for a in summary["averages"]]
    headings = [*zip(summary["tasks"], summary["metrics"], strict=True), *means]
    for heading, metric in headings:
        table.add_column(Text(f"{visible(heading)}\n{metric}"), justify="right")
    given = [*zip(summary["majority"], summary["guess"], strict=True)]
    rates = [{**(m if g["value"] is None else g), "best": False, "tied": False} for m, g in given]
    shares = [b["text"] for b in summary["class_balance"]]
    columns = [
        _column([*(row["cells"][i] for row in summary["rows"]), rate], [*headings[i], shares[i]])
        for i, rate in enumerate(rates)
    ]
    for i, row in enumerate(summary["rows"]):
        following = summary["rows"][i + 1 : i + 2]
        ends = bool(following) and following[0]["role"] != row["role"]
        table.add_row(
            Text(
                visible(
                    row["method"] if row["role"] == "method" else f"{row['method']} ({row['role']})"
                )
            ),
            *(column[i] for column in columns),
            *(Text(a["text"], "bold" if a["mark"] == "best" else "") for a in row["averages"]),
            style="dim" if row["role"] == "control" else None,
            end_section=ends,
        )
    if words := chance_words((m["value"], g["value"]) for m, g in given):
        table.add_row(words.row, *(column[-1] for column in columns), style="dim")
    if any(b["value"] is not None for b in summary["class_balance"]):
        table.add_row("classes in test", *map(Text, shares), style="dim")
    return table


def render_fitting(title: str, summary: dict[str, Any], console: Console) -> list[Table]:
    """The table, or if it is wider than `console` several tables of some columns each, averages first."""
    whole = render(title, summary)
    if _width(whole, console) <= console.width:
        return [whole]
    means = _runs(len(summary["averages"]), lambda m: _part(summary, range(0), m), console)
    tasks = _runs(len(summary["tasks"]), lambda t: _part(summary, t, range(0)), console)
    return [render("" if i else title, part) for i, part in enumerate([*means, *tasks])]


def _runs(
    n: int, part: Callable[[range], dict[str, Any]], console: Console
) -> list[dict[str, Any]]:
    """Split consecutive columns into as few fitting parts as possible; a column that does not fit is
    alone."""

    def fits(columns: range) -> bool:
        return _width(render("", part(columns)), console) <= console.width

    parts: list[dict[str, Any]] = []
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and fits(range(start, stop + 1)):
            stop += 1
        parts.append(part(range(start, stop)))
        start = stop
    return parts


def _width(table: Table, console: Console) -> int:
    """Width of a table without wrapped lines."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _part(summary: dict[str, Any], tasks: range, means: range) -> dict[str, Any]:
    """The part of a summary with some tasks and some averages."""
    by_task = ("tasks", "metrics", "n_test", "majority", "guess", "class_balance")
    rows = [
        {
            **row,
            "cells": [row["cells"][i] for i in tasks],
            "averages": [row["averages"][i] for i in means],
        }
        for row in summary["rows"]
    ]
    return {
        **summary,
        **{name: [summary[name][i] for i in tasks] for name in by_task},
        "averages": [summary["averages"][i] for i in means],
        "rows": rows,
    }


def _column(cells: Sequence[dict[str, Any] | None], others: Sequence[str]) -> list[Text]:
    """Aligned numbers, even if some are followed by a mark; `others` share the column."""
    is_marked = any(c is not None and c["tied"] for c in cells)
    behind = {False: "  " if is_marked else "", True: f" {TIED}"}
    texts = [
        f"{DASH}{behind[False]}" if c is None else c["text"] + behind[c["tied"]] for c in cells
    ]
    width = max(map(len, (*texts, *others)))
    return [
        # Aligned here, as the column would strip the spaces that stand for a missing mark.
        Text(text.rjust(width), "bold" if c is not None and c["best"] else "", justify="left")
        for text, c in zip(texts, cells, strict=True)
    ]
