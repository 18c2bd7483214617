"""The page's other tables as Markdown and LaTeX: the numbers of the page, and no markup from names."""

from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.claim_kinds import Within
from permafrost.stages.report.claims import claim_text
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.costs import Extraction, extractions_table
from permafrost.stages.report.markup import PlainTable, to_latex, to_markdown
from permafrost.stages.report.report import plain_tables
from permafrost.stages.report.standing import standings
from permafrost.stages.report.tables import ResultsTable, tabulate
from tests.stages.report.fake_results import Grid
from tests.stages.report.scored_cells import answers, scored_cell, two_classes
from tests.stages.report.test_costs import with_costs
from tests.stages.report.test_layers import SCORES, tidy


def sections(markdown: str) -> dict[str, list[list[str]]]:
    """Cells of each table by its heading."""
    found: dict[str, list[list[str]]] = {}
    for part in markdown.split("## ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")]
        found[title] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return found


@pytest.fixture
def written_tables(grid: Grid, tmp_path: Path) -> Path:
    grid = with_costs(grid)
    grid.layer_curves = tidy()
    grid.extractions = [Extraction("extract", 12_345, 20.0)]
    return grid.write(tmp_path / "report")


@pytest.mark.deep
def test_every_table_is_there_with_a_rule_and_as_many_cells_in_each_row(written_tables: Path):
    found = sections((written_tables / "tables.md").read_text())
    assert list(found) == [
        "Controls against chance, × 100",
        "matching: score by layer, × 100",
        "sts: score by layer, × 100",
        "ratio 0.2: share of the weight by kind of token, × 100, over 4 texts",
        "ratio 0.8: share of the weight by kind of token, × 100, over 4 texts",
        *(
            f"{task}: share of the weight of English function words, × 100, by a list, and weight of one of "
            "their tokens relative to uniform, over 4 texts"
            for task in ("ratio 0.2", "ratio 0.8")
        ),
        *(
            f"{task}: weight of a token by part of speech relative to uniform, by a list of closed classes, "
            "over 4 texts"
            for task in ("ratio 0.2", "ratio 0.8")
        ),
        "What was chosen on dev; metrics × 100",
        "Costs beside the test metric × 100; means over seeds",
        "Runs of the backbone",
    ]
    for head, rule, *rows in found.values():
        assert set("".join(rule)) <= set(":-")
        assert {len(row) for row in rows} == {len(head)} == {len(rule)}
    assert found["Runs of the backbone"][2] == ["extract", "12,345", "20"]


def test_scores_by_layer_are_those_given_and_gaps_are_dashes(written_tables: Path):
    found = sections((written_tables / "tables.md").read_text())
    head, _, *rows = found["matching: score by layer, × 100"]
    assert head == ["layer", "va", "hs"]
    for layer, *shown in rows:
        for method, text in zip(("va", "hs"), shown, strict=True):
            score = SCORES[method, "matching"].get(int(layer))
            assert text == ("–" if score is None else f"{100 * score:.1f}")


def test_costs_are_means_over_seeds(written_tables: Path, grid: Grid):
    found = sections((written_tables / "tables.md").read_text())
    head, _, *rows = found["Costs beside the test metric × 100; means over seeds"]
    (row,) = [r for r in rows if r[:2] == ["ratio 0.2", "glot"]]
    places = [i for i, c in enumerate(grid.cells, 1) if (c.task, c.method) == ("ratio 0.2", "glot")]
    assert row[head.index("fit, s")] == f"{10 * np.mean(places):,.0f}"
    assert row[head.index("parameters")] == "1,234"


def test_intervals_are_those_of_the_standing(tmp_path: Path):
    labels, config = two_classes(60), BootstrapConfig(n_resamples=200)
    cells = [
        scored_cell(tmp_path, name, labels, answers(right, labels, i))
        for i, (name, right) in enumerate((("a", 0.9), ("b", 0.6)))
    ]
    results = read_results(cells)
    plain = tabulate(results)
    (standing,) = found = standings(results, [("t", "accuracy")], config)
    table = ResultsTable(plain.columns, plain.rows, found)
    (first, *_) = plain_tables(
        table,
        0.95,
        correlations=(),
        on_test=PlainTable("", (), ()),
        pretrainings=(),
        elsewhere=(),
        residuals=(),
        claims=(),
        layers=(),
        weighed=(),
        choices=(),
        costs=(),
        extractions=(),
    )
    assert first.header[3:] == ("interval", "vs. best", "interval", "p")
    interval = standing.entries["b"]
    row = dict(zip(("task", "method", "test", "interval", "to"), first.rows[1], strict=False))
    assert row["interval"] == f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
    assert row["to"] == "−30.0"
    assert first.rows[0][4:] == ("best", "–", "–")


def test_names_do_not_become_markup():
    table = PlainTable("50 % of_it", ("a|b", "c"), (("x_1 & \\y", "1"),), n_names=1)
    assert to_markdown([table]).splitlines()[2:] == [
        r"| a\|b | c |",
        "| :--- | ---: |",
        r"| x_1 & \\y | 1 |",
    ]
    latex = to_latex([table, table])
    assert r"\caption{50 \% of\_it}" in latex
    assert r"x\_1 \& \textbackslash{}y & 1 \\" in latex
    assert latex.count(r"\label{tab:report-") == latex.count(r"\end{table}") == 2
    assert r"\label{tab:report-2}" in latex
    assert latex.count(r"\begin{tabular}{lr}") == 2


def test_a_table_without_rows_is_not_written(grid: Grid, tmp_path: Path):
    grid.config = ReportConfig(title="t")
    text = (grid.write(tmp_path / "report") / "tables.md").read_text()
    assert extractions_table([]).rows == ()
    assert "Runs of the backbone" not in text
    assert "Costs" not in text


@pytest.mark.parametrize(
    ("says", "points", "printed"),
    [
        ("about equal (+0.5; 1 point, of ours)", 1, "about equal (+0.5; 1 point, of ours)"),
        ("within 2 points of it", 2.0, "within 2 points of it"),
        ("nearly flat", 1.0, "nearly flat (within 1 point)"),
        ("within 11 points, or 0.1 points", 1, "within 11 points, or 0.1 points (within 1 point)"),
        ("nearly flat", 3.73, "nearly flat (within 3.73 points)"),
    ],
)
def test_the_points_of_a_claim_are_printed_once(says: str, points: float, printed: str) -> None:
    assert (
        claim_text(Within(kind="within", says=says, method="a", of=("b",), points=points))
        == printed
    )
