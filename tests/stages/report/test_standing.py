"""Intervals and comparisons with the best: from predictions on disk into the table, and every form of it."""

import json
from dataclasses import astuple, replace
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from permafrost.flows.terminal import render
from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    bootstrap_interval,
    paired_bootstrap,
)
from permafrost.stages.metrics.few_examples import unseen_share
from permafrost.stages.metrics.predictions import PREDICTIONS, predictions_table
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.entries import p_clause, p_text, signed
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.paired import paired_difference
from permafrost.stages.report.report import write_report
from permafrost.stages.report.results_files import results_latex, results_markdown, results_summary
from permafrost.stages.report.standing import SeedScore, standings
from permafrost.stages.report.tables import ResultsTable, tabulate
from tests.stages.report.fake_results import FakeCorpus
from tests.stages.report.scored_cells import answers, scored_cell, two_classes
from tests.stages.report.test_report import Page

CONFIG = BootstrapConfig(n_resamples=400)
REPORT = ReportConfig(title="t", bootstrap=CONFIG)
RIGHT = {"good": (0.9, 0.91), "close": (0.89, 0.9), "bad": (0.6, 0.62), "chance": (0.5, 0.5)}


@pytest.fixture
def cells(tmp_path: Path):
    labels = two_classes(400)
    return [
        scored_cell(
            tmp_path,
            method,
            labels,
            answers(right, labels, 10 * i + seed),
            seed=seed,
            role="control" if method == "chance" else "method",
        )
        for i, (method, rights) in enumerate(RIGHT.items())
        for seed, right in enumerate(rights)
    ]


def predictions_of(cells, method: str) -> np.ndarray:
    mine = [c for c in cells if c.method == method]
    tables = [pq.read_table(c.folder / PREDICTIONS) for c in mine]
    return np.stack([table["prediction"].to_numpy() for table in tables])


def with_notes(cells, config: ReportConfig = REPORT) -> ResultsTable:
    results = read_results(cells)
    return annotated(tabulate(results), results, config)


def test_intervals_and_comparisons_are_those_of_the_predictions(cells):
    (found,) = standings(read_results(cells), [("t", "accuracy")], CONFIG)
    labels = two_classes(400)
    for method in RIGHT:
        predictions = predictions_of(cells, method)
        expected = bootstrap_interval("accuracy", labels, predictions, n_resamples=400)
        assert found.entries[method] == expected
        for seed in (0, 1):
            alone = bootstrap_interval("accuracy", labels, predictions[seed], n_resamples=400)
            assert found.cells[method, seed] == alone
    assert found.best == "good"
    assert [a.method for a in found.against_best] == ["close", "bad"], "no control"
    best = predictions_of(cells, "good")
    for a in found.against_best:
        mine = predictions_of(cells, a.method)
        expected = paired_bootstrap("accuracy", labels, mine, best, n_resamples=400)
        assert a.difference.p == expected.p
        assert (a.difference.low, a.difference.high) == pytest.approx((expected.low, expected.high))
    assert found.tied(CONFIG.alpha) == {"close"}
    assert found.against("good") is None


def test_rows_of_the_same_fits_do_not_differ_on_a_task_or_on_the_mean(tmp_path: Path):
    """Whatever their seeds scored: other seeds would have been the same for both."""
    labels = two_classes(40)
    made = [
        scored_cell(tmp_path, m, labels, answers(r, labels, seed), task=task, seed=seed)
        for m in ("one", "twin")
        for task in ("t", "u")
        for seed, r in enumerate((0.9, 0.6))
    ]
    table = with_notes(made)
    for standing in table.standings:
        (against,) = standing.against_best
        assert astuple(against.difference)[:4] == (0, 0, 0, 1)
    on_mean = paired_difference(table, (0, 1), *table.rows, CONFIG)
    assert on_mean is not None
    # They may be other fits, whose answers differ on examples that are not among these 40.
    reach = unseen_share(40, CONFIG.level) / 2
    assert astuple(on_mean)[:4] == (0, -reach, reach, 1)
    same = [
        replace(s, seeds={m: {0: SeedScore(0.9, "fit/1")} for m in ("one", "twin")})
        for s in table.standings
    ]
    on_mean = paired_difference(replace(table, standings=tuple(same)), (0, 1), *table.rows, CONFIG)
    assert on_mean is not None
    assert astuple(on_mean)[:4] == (0, 0, 0, 1)


def test_a_task_on_which_rows_are_the_same_adds_no_spread_of_seeds_to_their_mean(tmp_path: Path):
    labels = two_classes(400)
    made = [
        scored_cell(tmp_path, m, labels, answers(r, labels, seed), task=task, seed=seed)
        for m, own in (("one", 0.9), ("two", 0.8))
        for seed, same in enumerate((0.95, 0.55, 0.75))
        for task, r in (("same", same), ("own", own))
    ]
    table = with_notes(made)
    alone = paired_difference(table, (1,), *table.rows, CONFIG)
    on_mean = paired_difference(table, (0, 1), *table.rows, CONFIG)
    assert alone is not None
    assert on_mean is not None
    halves = (alone.value / 2, alone.low / 2, alone.high / 2)
    assert astuple(on_mean)[:3] == pytest.approx(halves)
    assert on_mean.p == alone.p < 0.05


@pytest.mark.parametrize(("fits", "p"), [(("fit/a", "fit/b"), 1.0), ((None, None), None)])
def test_the_same_fits_are_known_as_such_without_predictions(
    tmp_path: Path, fits: tuple[str | None, ...], p: float | None
):
    labels = two_classes(40)
    made = [
        replace(
            scored_cell(tmp_path, m, labels, answers(right, labels, seed), seed=seed),
            fit=fits[seed],
        )
        for m in ("one", "twin")
        for seed, right in enumerate((0.9, 0.6))
    ]
    for cell in made:
        (cell.folder / PREDICTIONS).unlink()
    table = with_notes(made)
    found = paired_difference(table, (0,), *table.rows, CONFIG)
    assert (None if found is None else found.p) == p


def test_the_best_is_the_one_with_the_highest_score_on_test_whatever_dev_says(cells):
    path = cells[4].folder / "metrics.json"  # bad
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dev": 1.0}))
    (found,) = standings(read_results(cells), [("t", "accuracy")], CONFIG)
    assert found.best == "good"


def test_rows_in_another_order_share_the_resamples(cells):
    before = standings(read_results(cells), [("t", "accuracy")], CONFIG)
    path = cells[2].folder / PREDICTIONS
    table = pq.read_table(path)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), path)
    assert standings(read_results(cells), [("t", "accuracy")], CONFIG) == before


def test_predictions_that_do_not_give_the_score_are_left_out(cells):
    path = cells[2].folder / "metrics.json"  # close, seed 0
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test": 0.9001}))
    (cells[4].folder / PREDICTIONS).unlink()  # bad, seed 0
    table = with_notes(cells)
    (found,) = table.standings
    assert set(found.cells) == {(m, s) for m in RIGHT for s in (0, 1)} - {("close", 0), ("bad", 0)}
    assert set(found.entries) == {"good", "chance"}
    assert not found.against_best
    assert "2 of 8 results are not compared" in table.notes[0]
    assert not any(table.is_tied(row, 0) for row in table.rows)


def test_methods_on_other_texts_are_not_compared(cells, tmp_path: Path):
    labels = two_classes(400)
    other = [np.arange(1, 401)]
    cells.append(scored_cell(tmp_path, "other", labels, answers(0.95, labels, 5), sides=other))
    (found,) = standings(read_results(cells), [("t", "accuracy")], CONFIG)
    assert set(found.entries) == {*RIGHT, "other"}
    assert not found.against_best, "the best is on other texts"


def test_metrics_that_cannot_be_resampled_have_no_intervals(tmp_path: Path):
    labels = two_classes(10)
    cell = scored_cell(tmp_path, "m", labels, labels)
    path = cell.folder / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metric": "ndcg_at_10"}))
    (found,) = standings(read_results([cell]), [("t", "ndcg_at_10")], CONFIG)
    assert not found.entries
    assert with_notes([cell]).notes == ()


def test_every_form_of_the_table_marks_what_the_best_is_not_shown_to_beat(cells):
    table = with_notes(cells)
    by_method = {row.method: row for row in table.rows}
    assert table.is_best(by_method["good"], 0)
    assert [m for m, row in by_method.items() if table.is_tied(row, 0)] == ["close"]
    text = {m: table.text(row.entries[0]) for m, row in by_method.items() if row.entries[0]}
    markdown = results_markdown(table)
    assert f"| close | {text['close']} ≈ |" in markdown
    assert f"| bad | {text['bad']} |" in markdown
    assert "2 comparisons, not corrected" in markdown
    assert f"| good | **{text['good']}** |" in markdown
    latex = results_latex(table, "t")
    assert text["close"].replace("±", r"$\pm$") + r"$^{\approx}$ & 2 \\" in latex
    cell = results_summary(table)["rows"][1]["cells"][0]
    assert (cell["tied"], cell["best"]) == (True, False)
    assert cell["interval"] == [table.standings[0].entries["close"].low, cell["interval"][1]]


def test_a_terminal_shows_numbers_below_each_other_and_the_mark_behind(cells):
    table = with_notes(cells)
    console = Console(width=100, record=True)
    console.print(render("Title", {"title": "Title", **results_summary(table)}))
    lines = console.export_text().splitlines()
    rows = {line.split()[0]: line for line in lines if "±" in line}
    assert rows["close"].rstrip().endswith("≈")
    assert len({rows[m].index("±") for m in RIGHT}) == 1


def trained(cells):
    return [replace(cell, loss="cross_entropy") for cell in cells]


# 84.1 ± 16.9 against 93.8 ± 4.7 on 300 examples, three seeds each.
FAR_APART = {
    "scorer": (0.647, 0.926, 0.95),
    "GLOT": (0.8833, 0.96, 0.97),
    "first": (0.5, 0.52, 0.51),
}


@pytest.fixture
def far_apart(tmp_path: Path):
    labels = two_classes(300)
    return trained(
        scored_cell(tmp_path, method, labels, answers(right, labels, 10 * i + seed), seed=seed)
        for i, (method, rights) in enumerate(FAR_APART.items())
        for seed, right in enumerate(rights)
    )


def test_a_difference_that_seeds_can_make_alone_does_not_stand_as_significant(far_apart):
    table = with_notes(far_apart)
    scorer, glot, first = table.rows
    assert [table.text(e) for row in (scorer, glot) for e in row.entries if e] == [
        "84.1 ± 16.9",
        "93.8 ± 4.7",
    ]
    assert table.is_tied(scorer, 0)
    assert not table.is_tied(first, 0), "a large difference is found"
    interval = table.interval(scorer, 0)
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(0.45, abs=0.1), 1.0)
    assert "with other seeds drawn in each of 400 resamples" in table.notes[0]
    assert table.notes[1].startswith("3 seeds are few")
    size = next(note for note in table.notes if note.startswith("Too small"))
    assert "±5." in size, "a matter of the test set, not of the seeds"


def test_an_interval_without_width_does_not_stand_for_a_small_test_set(tmp_path: Path):
    labels = two_classes(30)
    table = with_notes([scored_cell(tmp_path, "perfect", labels, labels)])
    size = next(note for note in table.notes if note.startswith("Too small"))
    assert size.endswith("t (30 examples of 3.33 points).")


def test_one_seed_of_a_trained_method_is_named(far_apart, tmp_path: Path):
    alone = [cell for cell in far_apart if cell.seed == 0 or cell.method == "GLOT"]
    labels = two_classes(300)
    fixed = scored_cell(tmp_path, "untrained", labels, answers(0.7, labels, 70))
    said = with_notes([*alone, fixed]).notes[1]
    assert said.startswith("Only one seed of scorer, first: the comparisons leave out")
    assert not any("seeds" in note for note in with_notes([fixed]).notes)


@pytest.mark.parametrize(
    ("n_seeds", "start"),
    [(1, "Only one seed of A on y: "), (2, "2 seeds are few (A on y): "), (5, None)],
)
def test_few_seeds_on_one_task_alone_are_noted(tmp_path: Path, n_seeds: int, start: str | None):
    labels = two_classes(100)
    cells = [
        replace(
            scored_cell(tmp_path, method, labels, answers(0.7, labels, s), task=task, seed=s),
            loss="cross_entropy",
        )
        for method, task, n in (("A", "x", 5), ("A", "y", n_seeds), ("B", "x", 5), ("B", "y", 5))
        for s in range(n)
    ]
    found = [n for n in with_notes(cells).notes if n.startswith(start or ("Only", "5 seeds"))]
    assert len(found) == (start is not None)


def test_means_are_printed_with_the_best_in_bold_and_missing_tasks_as_dashes(tmp_path: Path):
    labels = two_classes(400)
    right = {("m", "a"): 0.9, ("m", "b"): 0.7, ("n", "a"): 0.6, ("n", "b"): 0.8, ("o", "a"): 0.99}
    cells = [
        scored_cell(tmp_path, method, labels, answers(share, labels, i), task=task)
        for i, ((method, task), share) in enumerate(right.items())
    ]
    table = with_notes(cells)
    scores = {
        (c.method, c.task): r.metrics.test for c, r in zip(cells, read_results(cells), strict=True)
    }
    m, n, o = table.rows
    (mean,) = table.averages
    assert table.average(m, mean) == (scores["m", "a"] + scores["m", "b"]) / 2
    assert table.average(o, mean) is None
    assert [table.is_best_average(row, mean) for row in (m, n, o)] == [True, False, False]
    lines = results_markdown(table).splitlines()
    assert "| mean (accuracy) | seeds |" in lines[0]
    assert lines[2].endswith(f"| **{100 * table.average(m, mean):.1f}** | 1 |")
    assert lines[4].endswith("| – | – | 1 |")
    assert any("unweighted (mean: 2 tasks)" in note for note in table.notes)
    dial = CurveAxis(label="x", values={"a": 0.1, "b": 0.2})
    curve = with_notes(cells, ReportConfig(title="t", x_axis=dial, bootstrap=CONFIG))
    assert not curve.averages
    assert not any("mean" in note.split(":")[0] for note in curve.notes[1:])


# Sizes of the test sets of RTE, WNLI, SST-2, CoLA and STS-B.
@pytest.mark.parametrize(
    ("n", "metric", "says"),
    [
        (277, "accuracy", "277 examples of 0.36 points, ±"),
        (71, "accuracy", "71 examples of 1.41 points, ±"),
        (1821, "accuracy", None),
        (1043, "mcc", "1,043 examples, ±"),
        (1379, "spearman", None),
    ],
)
def test_small_test_sets_are_named_with_their_size_and_interval(
    tmp_path: Path, n: int, metric, says: str | None
):
    labels = two_classes(n)
    predictions = answers(0.7, labels, 0)
    if metric == "spearman":
        rng = np.random.default_rng(0)
        labels = rng.normal(size=n)
        predictions = labels + rng.normal(0, 0.7, n)
    cells = [scored_cell(tmp_path, "m", labels, predictions, task="GLUE", metric=metric)]
    table = with_notes(cells)
    (interval,) = table.standings[0].entries.values()
    assert (interval.half_width > 0.03) == (says is not None)
    if says is None:
        assert table.notes == ()
    else:
        (note,) = table.notes
        assert f"GLUE ({says}{100 * interval.half_width:.1f})" in note


def test_the_wide_interval_of_a_control_makes_no_set_small(tmp_path: Path):
    rng = np.random.default_rng(0)
    labels = rng.normal(size=1379)
    near, noise = labels + rng.normal(0, 0.5, 1379), rng.normal(size=1379)
    cells = [
        scored_cell(tmp_path, "m", labels, near, metric="spearman"),
        scored_cell(tmp_path, "c", labels, noise, metric="spearman", role="control"),
    ]
    table = with_notes(cells)
    widths = {m: i.half_width for m, i in table.standings[0].entries.items()}
    assert widths["m"] < 0.03 < widths["c"]
    assert table.notes == ()


def test_a_small_set_without_predictions_is_named_by_its_size(tmp_path: Path):
    labels = two_classes(71)
    cell = scored_cell(tmp_path, "m", labels, answers(0.6, labels, 0))
    (cell.folder / PREDICTIONS).unlink()
    (note,) = with_notes([cell]).notes
    assert note.endswith("t (71 examples of 1.41 points).")


def test_a_single_test_example_is_not_resampled(tmp_path: Path):
    cell = scored_cell(tmp_path, "m", np.array([1]), np.array([1]))
    assert not with_notes([cell]).standings[0].entries


def test_only_the_test_split_is_read(tmp_path: Path):
    labels = two_classes(50)
    cell = scored_cell(tmp_path, "m", labels, answers(0.7, labels, 1))
    path = cell.folder / PREDICTIONS
    dev = predictions_table("dev", [np.arange(50)], labels, labels)
    before = standings(read_results([cell]), [("t", "accuracy")], CONFIG)
    pq.write_table(pa.concat_tables([dev, pq.read_table(path)]), path)
    assert standings(read_results([cell]), [("t", "accuracy")], CONFIG) == before


def test_the_page_and_the_files_hold_intervals_marks_and_notes(cells, tmp_path: Path):
    labels = two_classes(400)
    for i, (method, right) in enumerate({"good": 0.8, "bad": 0.7}.items()):
        given = answers(right, labels, 50 + i)
        cells.append(scored_cell(tmp_path, method, labels, given, task="u"))
    examples = pa.table({"split": ["test"] * 400, "text": pa.array(range(400), pa.int64())})
    corpus = FakeCorpus(tuple(f"text {i}" for i in range(400)), examples, ("no", "yes"))
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        write_report(REPORT, cells, {"t": corpus, "u": corpus}, lambda _: {}, {}, folder)
    first, second = ({p.name: p.read_bytes() for p in f.glob("*.*")} for f in folders)
    assert first == second
    table = with_notes(cells)
    page = Page(folders[0] / "report.html")
    for note in table.notes:
        assert f"<li>{escape(note)}</li>" in page.source
    marks = [a for a in page.all("span") if a.get("class") == "tied"]
    assert [a["aria-label"] for a in marks] == [", not significantly below the best"]
    results = next(row for row in page.rows if row[0] == "method" and "mean" in row[3])
    assert "mean" in results[3]
    (close,) = [row for row in page.rows if row[1:2] == ["close"] and len(row) == 7]
    against = table.standings[0].against("close")
    interval = table.standings[0].entries["close"]
    assert against is not None
    assert close[3] == f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
    assert close[6] == p_text(against.difference.p)
    rows = pq.read_table(folders[0] / "results.parquet").to_pylist()
    for row in rows:
        column = 0 if row["task"] == "t" else 1
        expected = table.standings[column].cells[row["method"], row["seed"]]
        assert (row["ci_low"], row["ci_high"]) == (expected.low, expected.high)
    assert (folders[0] / "results.tex").read_text() == results_latex(table, "t")
    assert (folders[0] / "results.md").read_text() == results_markdown(table)


def test_p_is_printed_with_more_digits_where_they_matter():
    assert [p_text(p) for p in (0.0009995, 0.0496, 0.31, 1.0)] == [
        "0.001",
        "0.0496",
        "0.31",
        "1.00",
    ]
    assert [signed(v) for v in (0.0123, -0.0123, 0.0, -0.0001)] == ["+1.2", "−1.2", "0.0", "0.0"]


def test_a_printed_p_is_never_zero_nor_on_the_other_side_of_a_level():
    assert [p_text(p) for p in (0.0, 2 / 4001, 0.0004, 0.0005)] == ["<0.001"] * 3 + ["0.001"]
    assert [p_text(p) for p in (0.04998, 0.05, 0.0504)] == ["0.04998", "0.050", "0.050"]
    assert [p_text(p) for p in (0.0099, 0.0996, 0.1)] == ["0.0099", "0.0996", "0.10"]
    assert p_text(np.nextafter(0.05, 0)).startswith("0.05")  # an end to the digits
    assert [p_clause(p_text(p)) for p in (0.0004, 0.2)] == ["p < 0.001", "p = 0.20"]
