"""What a page says of how its rows came about."""

from dataclasses import replace
from pathlib import Path

import pytest

from permafrost.stages.report.about import how_made
from permafrost.stages.report.cells import read_results
from tests.stages.report.fake_results import make_grid

ROWS = ("mean", "va", "head", "length")


def said(folder: Path, trained: set[str], tuned: set[str]) -> str:
    grid = make_grid(folder, ["sts"], ROWS[:3], ROWS[3:], seeds=[0, 1])
    for i, cell in enumerate(grid.cells):
        is_trained = cell.method in trained
        grid.edit_metrics(i, n_parameters=9 if is_trained else 0)
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
