"""Names that users give are printed as they are: brackets are not markup, control characters are seen."""

import io
from html import escape
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console
from rich.table import Table

from permafrost.flows.comparison.comparing import Side
from permafrost.flows.comparison.table import as_markdown, as_text
from permafrost.flows.engine.progress import Display
from permafrost.flows.terminal import Terminal, render
from permafrost.stages.metrics.comparison import Comparison

NAMES = ["GLOT [k=2]", "GLOT [k=4]", "m[/b]", "[red]x[/red]", ":smile:", "[link=a]y[/link]"]


def _terminal() -> Terminal:
    return Terminal(file=io.StringIO(), width=200, force_terminal=False)


def _printed(terminal: Terminal | Console) -> str:
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def _summary(names: list[str]) -> dict[str, Any]:
    cell = {"value": 0.5, "text": "50.0", "best": False, "tied": False, "mark": ""}
    return {
        "tasks": ["task [a]"],
        "metrics": ["accuracy"],
        "averages": [],
        "majority": [{**cell, "text": "25.0"}],
        "guess": [{"value": None, "text": "–"}],
        "class_balance": [{"value": None, "text": "–"}],
        "rows": [{"method": n, "role": "method", "cells": [cell], "averages": []} for n in names],
    }


@pytest.mark.parametrize("kind", [Terminal, Console])
def test_methods_keep_their_brackets_in_the_results(kind: type[Console]) -> None:
    terminal = kind(file=io.StringIO(), width=200)
    terminal.print(render("A title [/b]", _summary(NAMES)))
    for name in [*NAMES, "task [a]", "A title [/b]"]:
        assert name in _printed(terminal).replace("\n", " ")


def test_control_characters_in_a_name_are_visible_in_the_results() -> None:
    terminal = _terminal()
    terminal.print(render("t", _summary(["a\x1b[2J", "b\nc", "\u202ed"])))
    for shown in ("a\\x1b[2J", "b\\nc", "\\u202ed"):
        assert shown in _printed(terminal)
    assert "\x1b" not in _printed(terminal)


def test_both_sides_of_a_comparison_are_shown_as_they_are_called() -> None:
    terminal = _terminal()
    sides = [Side(label=f"run m[/b] \x1b{x}", methods=()) for x in "ab"]
    terminal.print(
        as_text(*sides, Comparison(changes=(), only_a=(("m[/b]", "t[/b]"),), only_b=(), alpha=0.05))
    )
    assert "run m[/b] \\x1ba" in _printed(terminal)
    assert "t[/b] on m[/b]" in _printed(terminal)


@pytest.mark.parametrize("name", [*NAMES, "a|b", "*x*", "<b>", "`x`", "&lt;"])
def test_a_comparison_in_markdown_shows_names_as_they_are(name: str) -> None:
    sides = [Side(label=name, methods=()) for _ in "ab"]
    found = Comparison(changes=(), only_a=((name, name),), only_b=(), alpha=0.05)
    page = MarkdownIt("commonmark").enable("table").render(as_markdown(*sides, found))
    assert f"<p>A: {escape(name)}</p>" in page
    assert f"{escape(name)} on {escape(name)}" in page


@pytest.mark.parametrize("text", NAMES)
def test_strings_are_literal_in_lines_and_in_tables(text: str) -> None:
    terminal = _terminal()
    terminal.print(f"{text}\x1b[0m: 12")
    table = Table(title=text)
    table.add_column(text)
    table.add_row(f"{text}\x07")
    terminal.print(table)
    assert f"{text}\\x1b[0m: 12" in _printed(terminal)
    assert f"{text}\\x07" in _printed(terminal)
    assert _printed(terminal).count(text) == 4


def test_progress_and_failures_are_literal() -> None:
    terminal = Terminal(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with Display(terminal) as board:
        board.say("failed fit m[/b] \x1b]0;x", "red")
        bar = board.open("fit m[/b] GLOT [k=2]", 3, "steps")
        board.move(bar, 1, "loss [/x]")
        board.close(bar)
    assert "failed fit m[/b] \\x1b]0;x" in _printed(terminal)
    assert "fit m[/b] GLOT [k=2]" in _printed(terminal)
