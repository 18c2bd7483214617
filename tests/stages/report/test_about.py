"""What a page says of how its rows came about."""

from dataclasses import replace
from pathlib import Path

import pytest

from permafrost.stages.report.about import how_made
from permafrost.stages.report.cells import read_results
from tests.stages.report.fake_results import make_grid

ROWS = ("mean", "va", "head", "length")


def test_a_baseline_that_is_a_control_elsewhere_counts_as_two_rows(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, ["a", "b"], ["mean"], ["length"], seeds=[0])
    for i, cell in enumerate(grid.cells):
        if (cell.method, cell.task) == ("length", "a"):
            grid.cells[i] = replace(cell, role="baseline")
    assert "Everything in the table" in how_made(read_results(grid.cells))
    for i, cell in enumerate(grid.cells):
        if cell.method == "mean":
            grid.edit_metrics(i, n_parameters=0)
            grid.cells[i] = replace(cell, history=None)
    assert "Of the 3 rows of the table 2 were trained" in how_made(read_results(grid.cells))


@pytest.mark.parametrize(
    ("choice", "is_said"), [({"layers": "3"}, True), ({"answer": "yes"}, False), ({}, False)]
)
def test_layers_that_dev_chose_are_said_where_nothing_was_trained(
    tmp_path: Path, choice: dict[str, str], is_said: bool
) -> None:
    grid = make_grid(tmp_path, ["sts"], ["mean"], [], seeds=[0])
    grid.edit_metrics(0, n_parameters=0, choice=choice)
    grid.cells[0] = replace(grid.cells[0], history=None)
    text = how_made(read_results(grid.cells))
    assert "nothing was trained." in text
    assert (
        "Layers, where there was a choice, were chosen on dev, or by the evaluation" in text
    ) == is_said


def said(folder: Path, trained: set[str], tuned: set[str]) -> str:
    grid = make_grid(folder, ["sts"], ROWS[:3], ROWS[3:], seeds=[0, 1])
    for i, cell in enumerate(grid.cells):
        is_trained = cell.method in trained
        made = {"n_parameters": 9} if is_trained else {"n_parameters": 0, "choice": {}}
        grid.edit_metrics(i, **made)
        history = cell.history if is_trained else None
        grid.cells[i] = replace(cell, history=history, tunes_backbone=cell.method in tuned)
    return how_made(read_results(grid.cells))


@pytest.mark.parametrize(
    ("trained", "tuned", "words"),
    [
        (set(), set(), ["A frozen transformer was run once", "nothing was trained"]),
        (
            {"length"},
            set(),
            [
                "A frozen",
                "Of the 4 rows of the table 1 was trained on a train split, and 3 were not.",
            ],
        ),
        (
            {"va", "head", "length"},
            set(),
            ["A frozen", "4 rows of the table 3 were trained on a train split, and 1 was not."],
        ),
        (set(ROWS), set(), ["A frozen transformer", "Everything in the table was trained"]),
        (
            set(ROWS),
            {"head"},
            [
                "In 1 of the 4 rows of the table the transformer itself was trained; everywhere",
                "Everything",
            ],
        ),
        (
            set(),
            {"va"},
            [
                "In 1 of the 4",
                "4 rows of the table 1 was trained on a train split, and 3 were not.",
            ],
        ),
        (set(ROWS), set(ROWS), ["The transformer itself was trained in every row", "Everything"]),
    ],
)
def test_rows_are_counted_by_what_was_trained(
    tmp_path: Path, trained: set[str], tuned: set[str], words: list[str]
) -> None:
    text = said(tmp_path, trained, tuned)
    assert all(part in text for part in words), text
    assert ("frozen" in text) == (tuned != set(ROWS))
    assert ("chosen on dev" in text) == bool(trained | tuned)
