"""Both correlations of every method on graded pairs, whichever of them is the metric."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.config import ReportConfig
from tests.stages.report.fake_results import FakeCorpus, Grid
from tests.stages.report.scored_cells import scored_cell
from tests.stages.report.test_plain_tables import sections
from tests.stages.report.test_report import Page

N = 60
RNG = np.random.default_rng(3)
GRADES = np.round(RNG.uniform(0, 5, N), 1)
PREDICTED = {
    ("head", 0): np.exp(GRADES + RNG.normal(size=N)),
    ("head", 1): np.exp(GRADES + RNG.normal(size=N)),
    ("shuffled", 0): RNG.normal(size=N),
    ("constant", 0): np.full(N, 2.5),
}
ROLES: dict[str, Role] = {"head": "method", "shuffled": "control", "constant": "baseline"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    sides = [np.arange(N), np.arange(N) + N]
    cells = [
        scored_cell(
            tmp_path,
            name,
            GRADES,
            predicted,
            task="graded",
            seed=seed,
            metric="pearson",
            role=ROLES[name],
            sides=sides,
        )
        for (name, seed), predicted in PREDICTED.items()
    ]
    classes = np.arange(N) % 2
    cells.append(scored_cell(tmp_path, "head", classes, classes, task="classes"))
    examples = pa.table(
        {
            "split": ["test"] * N,
            "text": np.arange(N),
            "text_pair": np.arange(N) + N,
            "label": GRADES,
        }
    )
    texts = tuple(f"text {i}" for i in range(2 * N))
    corpora = {
        "graded": FakeCorpus(texts, examples, (), "similarity"),
        "classes": FakeCorpus(texts, examples.drop(["text_pair"]), ("a", "b")),
    }
    return Grid(ReportConfig(title="t"), cells, corpora, {}, {}).write(tmp_path / "report")


def test_every_row_has_both_as_scipy_gives_them(written: Path) -> None:
    rows = pq.read_table(written / "results.parquet").to_pylist()
    assert len(rows) == 5
    for row in rows:
        both = row["pearson"], row["spearman"]
        if row["task"] == "classes":
            assert both == (None, None)
        elif row["method"] == "constant":
            assert both == (0, 0)
        else:
            predicted = PREDICTED[row["method"], row["seed"]]
            expected = stats.pearsonr(predicted, GRADES)[0], stats.spearmanr(predicted, GRADES)[0]
            assert both == pytest.approx(expected, abs=1e-12)


def test_the_page_and_the_tables_show_means_over_seeds_of_both(written: Path) -> None:
    of = {
        key: (stats.pearsonr(p, GRADES)[0], stats.spearmanr(p, GRADES)[0])
        for key, p in PREDICTED.items()
        if np.ptp(p)
    }
    heads = np.array([of["head", 0], of["head", 1]])
    assert abs(heads[:, 0] - heads[:, 1]).min() > 0.05, "exponentials are no line"
    shown = [
        f"{100 * mean:.1f} ± {100 * sd:.1f}"
        for mean, sd in zip(heads.mean(0), heads.std(0, ddof=1), strict=True)
    ]
    title = "Both correlations on test × 100, mean ± sample standard deviation over seeds"
    head, _, *rows = sections((written / "tables.md").read_text())[title]
    assert head == ["method", "graded · Pearson", "graded · Spearman"]
    assert rows[0] == ["head", *shown]
    assert [row[0] for row in rows] == ["head", "constant (baseline)", "shuffled (control)"]
    assert rows[1][1:] == ["0.0 ± –", "0.0 ± –"]
    assert ["head", *shown] in Page(written / "report.html").rows
    assert "graded · Spearman" in (written / "tables.tex").read_text()
    summary = json.loads((written / "summary.json").read_text())["correlations"]
    assert [(s["method"], s["task"]) for s in summary] == [
        (name, "graded") for name in ("head", "shuffled", "constant")
    ]
    assert summary[0]["spearman"] == pytest.approx(heads[:, 1].mean(), abs=1e-12)
