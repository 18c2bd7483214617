"""What an answer without knowledge scores: its name and value where tasks are classes, choices, or both."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from permafrost.flows.terminal import render
from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.controls import control_findings
from permafrost.stages.report.finding import finding
from permafrost.stages.report.main_figure import main_figure
from permafrost.stages.report.palette import marks
from permafrost.stages.report.results_files import (
    results_latex,
    results_markdown,
    results_summary,
)
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page

ROWS = {
    "classes": ("majority class", "50.0", "50.0"),
    "choices": ("guess among choices", "25.0", "25.0"),
    "both": ("majority or guess", "25.0", "50.0"),
}
"""By what the tasks are: the row's name and its two numbers."""
SAID = {
    "classes": ("the majority class (50.0)", "the majority rate in accuracy"),
    "choices": (
        "a guess among the choices (25.0)",
        "the rate of a guess among the choices in accuracy",
    ),
    "both": (
        "the majority class or, of multiple choice, a guess (37.5)",
        "the majority rate (of multiple choice that of a guess) in accuracy",
    ),
}


@pytest.fixture(params=ROWS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def asked(make_grid, kind: str) -> Grid:
    """Two tasks of this kind, on which a method is as good as a guess."""
    grid: Grid = make_grid(tasks=["t", "u"], methods=["m"], controls=["c"], seeds=[0])
    for i, cell in enumerate(grid.cells):
        are_choices = kind == "choices" or (kind, cell.task) == ("both", "t")
        told = {"majority": None, "guess": 0.25} if are_choices else {"majority": 0.5}
        grid.edit_metrics(i, test=0.25, **told)
    return grid


def test_the_row_has_the_name_that_is_true_of_all_columns(asked: Grid, kind: str):
    table = results_table(asked.cells)
    name, *rates = ROWS[kind]
    markdown = results_markdown(table).splitlines()[-1]
    assert markdown.startswith(f"| {' | '.join([name, *rates])} |")
    assert f"{name} & {' & '.join(rates)}" in results_latex(table, "t")
    console = Console(width=200, record=True)
    console.print(render("t", results_summary(table)))
    assert [*name.split(), "│", rates[0], "│", rates[1]] in [
        line.split() for line in console.export_text().splitlines()
    ]
    with drawing():
        figure = main_figure(asked.config, table, marks(table))
        assert figure.legends[0].get_texts()[-1].get_text() == name
        assert [f"{y:.1f}" for y in figure.axes[0].lines[-1].get_ydata()] == rates


def test_the_page_says_what_no_method_is_above(asked: Grid, kind: str, tmp_path: Path):
    answer, rate = SAID[kind]
    said = finding(results_table(asked.cells), ReportConfig(title="t"))
    assert said.endswith(f"; no method is above {answer}.")
    page = Page(asked.write(tmp_path / "report") / "report.html")
    assert page.source.count(rate) == 2
    name, *rates = ROWS[kind]
    assert page.row(name.split()[0])[:3] == [name, *rates]


def test_a_control_at_the_rate_of_the_most_frequent_place_is_above_chance(make_grid):
    """Questions of four choices of which the first is right in 27.6%, as in OpenBookQA, but more of them."""
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=["c"], seeds=[0])
    for i in range(2):
        grid.edit_metrics(i, test=0.276, majority=None, guess=0.25, n_test=5000)
    (found,) = control_findings(results_table(grid.cells))
    assert (found.chance, found.verdict) == (0.25, "above chance")
    assert found.standard_error == pytest.approx((0.25 * 0.75 / 5000) ** 0.5)


def test_results_of_before_guesses_were_told_are_read(make_grid):
    """Alone, and beside one that has the guess, which then is the column's."""
    grid: Grid = make_grid(tasks=["t"], methods=["m", "n"], controls=[], seeds=[0])
    for i in range(2):
        grid.edit_metrics(i, majority=0.276)
    assert results_table(grid.cells).columns[0].chance == 0.276
    grid.edit_metrics(1, majority=None, guess=0.25)
    summary = json.loads(json.dumps(results_summary(results_table(grid.cells))))
    assert summary["majority"] == [{"value": None, "text": "–"}]
    assert summary["guess"] == [{"value": 0.25, "text": "25.0"}]
