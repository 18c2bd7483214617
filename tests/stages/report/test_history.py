import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.report.cells import read_results
from stages.report.history import learning_curves
from storage.errors import CorruptDataError, NotFoundError
from tests.stages.report.fake_results import Grid


def test_a_learning_curve_follows_the_candidate_with_the_best_dev_metric(grid: Grid):
    results = read_results(grid.cells)
    curves = learning_curves(results)
    assert {c.method for c in curves} == {"mean", "scorer", "glot", "shuffled"}
    (curve,) = [c for c in curves if (c.method, c.task) == ("glot", "ratio 0.8")]
    ends = [r.metrics.dev for r in results if (r.cell.method, r.cell.task) == ("glot", "ratio 0.8")]
    assert curve.epochs.tolist() == [1, 2, 3, 4]
    assert curve.mean[-1] == pytest.approx(np.mean(ends))
    assert (curve.low[-1], curve.high[-1]) == (min(ends), max(ends))
    assert curve.n_seeds == 3


def test_ties_on_dev_show_the_first_candidate_whatever_the_order_of_rows(grid: Grid):
    for cell in grid.cells[:3]:
        pq.write_table(
            pa.table(
                {
                    "candidate": [1, 0, 1, 0],
                    "epoch": [2, 2, 1, 1],
                    "dev_metric": [0.9, 0.9, 0.1, 0.2],
                }
            ),
            cell.folder / "history.parquet",
        )
    (curve,) = learning_curves(read_results(grid.cells[:3]))
    assert curve.mean.tolist() == pytest.approx([0.2, 0.9])


def test_seeds_with_different_numbers_of_epochs_are_cut_to_the_shortest(grid: Grid):
    pq.write_table(
        pa.table({"candidate": [0, 0], "epoch": [1, 2], "dev_metric": [0.5, 0.9]}),
        grid.cells[0].folder / "history.parquet",
    )
    (curve,) = learning_curves(read_results(grid.cells[:3]))
    assert curve.epochs.tolist() == [1, 2]


def test_a_history_that_is_missing_or_lacks_a_column_is_named(grid: Grid):
    path = grid.cells[0].folder / "history.parquet"
    results = read_results(grid.cells)
    pq.write_table(pa.table({"candidate": [0], "epoch": [1]}), path)
    with pytest.raises(CorruptDataError, match=r"mean · ratio 0\.2 · seed 0.*dev_metric"):
        learning_curves(results)
    path.write_bytes(b"not parquet")
    with pytest.raises(CorruptDataError, match="not a readable parquet file"):
        learning_curves(results)
    path.unlink()
    with pytest.raises(NotFoundError, match=r"history of mean · ratio 0\.2 · seed 0"):
        learning_curves(results)
