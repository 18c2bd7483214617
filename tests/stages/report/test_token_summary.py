"""Kinds, positions and entropy of token weights, against sums written out here."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.patches import Rectangle
from scipy import stats

from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.palette import KIND_COLOURS as COLOURS
from permafrost.stages.report.palette import marks
from permafrost.stages.report.token_summary import (
    SCHEMA,
    by_position,
    entropy,
    summaries,
    summary_description,
    summary_figure,
    summary_table,
)
from permafrost.stages.report.tokens import KINDS, Token, read_tokens, read_weights
from permafrost.storage.errors import CorruptDataError
from tests.stages.report.fake_results import Grid, results_table


def table_of(grid: Grid) -> pa.Table:
    weights = read_weights(read_results(grid.cells))
    return summary_table(weights, read_tokens(weights, grid.text_tokens))


def stored(grid: Grid, i: int) -> list[dict[str, list[float]]]:
    return pq.read_table(grid.cells[i].folder / "token_weights.parquet").to_pylist()


def test_every_number_is_the_mean_over_texts_of_a_sum_written_out(make_grid):
    grid = make_grid(tasks=["t"], controls=[])
    rows = table_of(grid).to_pylist()
    assert [(r["method"], r["seed"]) for r in rows] == [(c.method, c.seed) for c in grid.cells]
    for i, row in enumerate(rows):
        texts = stored(grid, i)
        found = {name: list[float]() for name in ("special", "word", "continuation")}
        entropies, effective, tenths = [], [], []
        for of_text in texts:
            weights = of_text["weights"]
            # [CLS], the name of the text, its words, and a last piece that continues a word.
            found["special"].append(weights[0])
            found["word"].append(sum(weights[1:-1]))
            found["continuation"].append(weights[-1])
            h = stats.entropy(np.asarray(weights, np.float64))
            entropies.append(h)
            effective.append(math.exp(h))
            n = len(weights)
            tenths.append(
                [
                    sum(
                        w * n * max(0.0, min((t + 1) / n, (k + 1) / 10) - max(t / n, k / 10))
                        for t, w in enumerate(weights)
                    )
                    for k in range(10)
                ]
            )
        for kind, shares in found.items():
            assert row[f"weight_{kind}"] == pytest.approx(np.mean(shares), abs=1e-9)
        assert row["weight_punctuation"] == 0
        assert row["entropy"] == pytest.approx(np.mean(entropies), abs=1e-6)
        assert row["effective_tokens"] == pytest.approx(np.mean(effective), rel=1e-6)
        positions = [row[f"position_{k + 1}"] for k in range(10)]
        assert positions == pytest.approx(np.mean(tenths, axis=0).tolist(), abs=1e-9)
        assert sum(positions) == pytest.approx(1, abs=1e-6)
        assert row["n_tokens"] == np.mean([len(t["weights"]) for t in texts]) == 17
        assert row["tokens_special"] == row["tokens_continuation"] == pytest.approx(1 / 17)


def test_a_mean_has_the_shares_of_the_tokens_and_all_of_them_are_effective(make_grid):
    rows = table_of(make_grid(tasks=["t"], methods=["mean"], controls=[])).to_pylist()
    for row in rows:
        for kind in KINDS:
            assert row[f"weight_{kind}"] == pytest.approx(row[f"tokens_{kind}"], abs=1e-7)
        assert row["effective_tokens"] == pytest.approx(row["n_tokens"], rel=1e-6)
        assert row["entropy"] == pytest.approx(math.log(17), abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 11, 512])
def test_uniform_weights_give_every_tenth_the_same_however_long_the_text(n: int):
    assert by_position(np.full(n, 1 / n)).tolist() == pytest.approx([0.1] * 10)


def test_a_token_is_where_it_stands():
    weights = np.zeros(20)
    weights[3] = 1.0
    assert by_position(weights).tolist() == [0, pytest.approx(1), *[0] * 8]
    assert by_position(np.array([1.0, 0.0])).tolist() == pytest.approx([0.2] * 5 + [0] * 5)


def test_a_weight_of_zero_adds_nothing_to_the_entropy():
    assert entropy(np.array([0.5, 0.0, 0.5])) == pytest.approx(math.log(2))
    assert entropy(np.array([0.0, 1.0])) == 0


def test_seeds_are_averaged_and_tasks_stay_apart(grid: Grid):
    table = table_of(grid)
    assert table.schema.equals(SCHEMA)
    found = summaries(table)
    assert [s.task for s in found] == ["ratio 0.2", "ratio 0.8"]
    (glot,) = [m for m in found[1].methods if m.method == "glot"]
    mine = [
        row for row in table.to_pylist() if (row["task"], row["method"]) == ("ratio 0.8", "glot")
    ]
    assert glot.n_seeds == len(mine) == 3
    assert glot.effective_tokens == pytest.approx(np.mean([r["effective_tokens"] for r in mine]))
    assert glot.kinds.tolist() == pytest.approx(
        [np.mean([r[f"weight_{k}"] for r in mine]) for k in KINDS]
    )
    assert found[1].n_texts == 4


def test_only_texts_that_every_cell_has_are_compared(make_grid):
    grid = make_grid(tasks=["t"], methods=["mean", "glot"], controls=[], seeds=[0])
    path = grid.cells[0].folder / "token_weights.parquet"
    kept = pq.read_table(path).slice(1)
    pq.write_table(kept, path)
    unknown = kept["digest"].to_pylist()[0]
    del grid.tokens[unknown]
    rows = table_of(grid).to_pylist()
    assert [row["n_texts"] for row in rows] == [2, 2]
    expected = np.mean([t["weights"][0] for t in stored(grid, 1)[2:]])
    assert rows[1]["weight_special"] == pytest.approx(expected)


def test_without_weights_or_tokens_there_is_no_summary(make_grid):
    grid = make_grid(tasks=["t"], methods=["mean"], controls=["shuffled"], seeds=[0])
    grid.tokens = {}
    assert summaries(table_of(grid)) == ()
    (grid.cells[0].folder / "token_weights.parquet").unlink()
    assert table_of(grid).num_rows == 0


def test_tokens_are_asked_for_once_and_a_wrong_number_of_them_is_refused(make_grid):
    grid = make_grid(tasks=["t"], controls=[])
    weights = read_weights(read_results(grid.cells))
    asked: list[list[str]] = []

    def tokens(digests):
        asked.append(list(digests))
        return {digests[0]: [Token("a")]}

    with pytest.raises(CorruptDataError, match="has 17 weights under 'mean' but 1 tokens"):
        read_tokens(weights, tokens)
    assert len(asked) == 1
    assert len(asked[0]) == len(set(asked[0])) == 4


def test_the_figure_draws_these_numbers(grid: Grid):
    found = summaries(table_of(grid))
    row_marks = marks(results_table(grid.cells))
    with drawing():
        figure = summary_figure(found, row_marks)
    bars, lines = figure.axes[0::2], figure.axes[1::2]
    assert [axes.get_title(loc="left") for axes in bars] == [
        "ratio 0.2 · 4 texts",
        "ratio 0.8 · 4 texts",
    ]
    for summary, left, right in zip(found, bars, lines, strict=True):
        labels = [t.get_text() for t in left.get_yticklabels()]
        assert labels == ["uniform weights", "mean", "scorer", "glot"]
        widths = {
            (round(bar.get_y() + bar.get_height() / 2), bar.get_facecolor()): bar.get_width()
            for bar in left.patches
            if isinstance(bar, Rectangle)
        }
        assert sorted(widths.values()) == pytest.approx(
            sorted(
                100 * share
                for shares in (summary.kinds, *(m.kinds for m in summary.methods))
                for share in shares
            )
        )
        drawn = {line.get_color(): line.get_ydata() for line in right.lines}
        for method in summary.methods:
            expected = np.maximum(10 * method.positions, 1 / 16)
            assert drawn[row_marks[method.method].colour] == pytest.approx(expected)
        low, high = right.get_ylim()
        assert low <= 0.5 < 2 <= high
    assert len(COLOURS) == len(KINDS)
    assert "ratio 0.2, 4 texts: mean 17.0 effective tokens" in summary_description(found)
