import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes

from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.learning import learning_curves, learning_description, learning_figure
from permafrost.stages.report.palette import marks
from permafrost.storage.errors import CorruptDataError, NotFoundError
from tests.stages.report.fake_results import Grid, results_table


def write_history(grid: Grid, i: int, **columns: list[float | int | None]) -> None:
    pq.write_table(pa.table(columns), grid.cells[i].folder / "history.parquet")


def of_first_method(grid: Grid):
    (curve,) = learning_curves(read_results(grid.cells[:3]))
    return curve


def test_a_learning_curve_follows_the_candidate_with_the_best_dev_metric(grid: Grid):
    results = read_results(grid.cells)
    curves = learning_curves(results)
    assert {c.method for c in curves} == {"mean", "scorer", "glot", "shuffled"}
    (curve,) = [c for c in curves if (c.method, c.task) == ("glot", "ratio 0.8")]
    ends = [r.metrics.dev for r in results if (r.cell.method, r.cell.task) == ("glot", "ratio 0.8")]
    dev, loss = curve.series("dev_metric"), curve.series("train_loss")
    assert dev.epochs.tolist() == loss.epochs.tolist() == [1, 2, 3, 4]
    assert dev.mean[-1] == pytest.approx(np.mean(ends))
    assert (dev.low[-1], dev.high[-1]) == (min(ends), max(ends))
    assert loss.mean.tolist() == pytest.approx([0.7, 0.6, 0.5, 0.4])
    assert [run.seed for run in curve.runs] == [0, 1, 2]
    assert [(run.kept, run.kept_metric) for run in curve.runs] == [(4, end) for end in ends]
    assert {(run.n_candidates, run.n_epochs) for run in curve.runs} == {(2, 8)}


def test_ties_on_dev_show_the_first_candidate_whatever_the_order_of_rows(grid: Grid):
    for i in range(3):
        write_history(
            grid,
            i,
            candidate=[1, 0, 1, 0],
            epoch=[2, 2, 1, 1],
            train_loss=[0.1, 0.2, 0.3, 0.4],
            dev_metric=[0.9, 0.9, 0.1, 0.2],
        )
    curve = of_first_method(grid)
    assert curve.series("dev_metric").mean.tolist() == pytest.approx([0.2, 0.9])
    assert curve.series("train_loss").mean.tolist() == pytest.approx([0.4, 0.2])
    assert [run.kept for run in curve.runs] == [2, 2, 2]


def test_the_earliest_of_equal_epochs_is_the_one_kept(grid: Grid):
    write_history(grid, 0, epoch=[3, 1, 2], train_loss=[0.1] * 3, dev_metric=[0.5, 0.2, 0.5])
    assert of_first_method(grid).runs[0].kept == 2


def test_a_fit_without_candidates_is_evaluated_every_few_epochs(grid: Grid):
    """What a pair head on the latents of every layer writes."""
    for i in range(3):
        write_history(
            grid,
            i,
            epoch=[1, 2, 3, 4, 5],
            train_loss=[-1.0, -2.0, -3.0, -4.0, -5.0],
            dev_metric=[None, 0.3, None, 0.7, 0.6],
        )
    curve = of_first_method(grid)
    assert curve.series("train_loss").epochs.tolist() == [1, 2, 3, 4, 5]
    assert curve.series("dev_metric").epochs.tolist() == [2, 4, 5]
    assert curve.series("dev_metric").mean.tolist() == pytest.approx([0.3, 0.7, 0.6])
    assert [(run.kept, run.kept_metric) for run in curve.runs] == [(4, 0.7)] * 3
    assert curve.runs[0].n_candidates == 1


def test_the_mean_ends_where_a_seed_stops_and_the_others_go_on_alone(grid: Grid):
    write_history(grid, 0, epoch=[1, 2], train_loss=[0.9, 0.8], dev_metric=[0.5, 0.95])
    curve = of_first_method(grid)
    assert curve.series("dev_metric").epochs.tolist() == [1, 2]
    tails = curve.tails("train_loss")
    assert [epochs.tolist() for epochs, _ in tails] == [[2, 3, 4]] * 2
    assert tails[0][1].tolist() == pytest.approx([0.6, 0.5, 0.4])


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


def test_a_history_without_any_metric_on_dev_is_refused(grid: Grid):
    write_history(grid, 0, epoch=[1], train_loss=[0.1], dev_metric=[float("nan")])
    with pytest.raises(CorruptDataError, match="no metric on dev in any of 1 epochs"):
        of_first_method(grid)


def test_a_long_name_of_a_task_leaves_the_loss_in_the_title(make_grid):
    name = "OpenBookQA with the gold fact"
    grid: Grid = make_grid(tasks=[name], methods=["m"], controls=[], seeds=[0])
    curves = learning_curves(read_results(grid.cells))
    with drawing():
        figure = learning_figure(curves, marks(results_table(grid.cells)))
    assert figure.axes[0].get_title(loc="left") == "OpenBookQA… · cross_entropy on train"


def test_losses_of_different_kinds_are_in_different_rows_and_rings_mark_what_was_kept(grid: Grid):
    grid.cells = [
        replace(c, loss="mse") if c.method == "scorer" else c
        for c in grid.cells
        if c.task == "ratio 0.2"
    ]
    curves = learning_curves(read_results(grid.cells))
    row_marks = marks(results_table(grid.cells))
    with drawing():
        figure = learning_figure(curves, row_marks)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "ratio 0.2 · cross_entropy on train",
        "accuracy on dev × 100",
        "ratio 0.2 · mse on train",
        "accuracy on dev × 100",
    ]
    (scorer,) = [c for c in curves if c.method == "scorer"]
    loss, dev = figure.axes[2:]
    assert lines_of(loss) == {(1, 2, 3, 4): scorer.series("train_loss").mean.tolist()}
    drawn = lines_of(dev)
    assert drawn.pop((1, 2, 3, 4)) == pytest.approx(
        (100 * scorer.series("dev_metric").mean).tolist()
    )
    rings = [line for line in dev.lines if line.get_markerfacecolor() == "none"]
    assert [(r.get_xdata()[0], r.get_ydata()[0]) for r in rings] == [  # pyright: ignore[reportIndexIssue]
        (run.kept, pytest.approx(100 * run.kept_metric)) for run in scorer.runs
    ]
    assert {r.get_markeredgecolor() for r in rings} == {row_marks["scorer"].colour}


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([2.1, 0.5, 0.2, 0.1], "log"),
        ([1.9, 0.5, 0.2, 0.1], "linear"),
        ([2.1, 0.5, 0.0, -3.0], "linear"),
    ],
)
def test_positive_losses_that_differ_much_are_drawn_on_a_logarithmic_scale(
    grid: Grid, losses: list[float], scale: str
):
    for i in range(3):
        write_history(grid, i, epoch=[1, 2, 3, 4], train_loss=losses, dev_metric=[0.5] * 4)
    with drawing():
        figure = learning_figure([of_first_method(grid)], marks(results_table(grid.cells)))
    assert [axes.get_yscale() for axes in figure.axes] == [scale, "linear"]


def lines_of(axes: Axes) -> dict[tuple[int, ...], list[float]]:
    return {
        tuple(line.get_xdata()): list(line.get_ydata())  # pyright: ignore[reportArgumentType]
        for line in axes.lines
        if line.get_linestyle() != "None"
    }


def test_the_description_says_what_was_kept(grid: Grid):
    words = learning_description(learning_curves(read_results(grid.cells[:1])))
    dev = read_results(grid.cells[:1])[0].metrics.dev
    assert f"Kept, by seed: mean on ratio 0.2 {dev:.1%} at epoch 4." in words


def test_the_loss_is_that_of_the_candidate_that_was_kept(grid: Grid):
    for i, losses in enumerate((("mse", "l1"), ("l1", "mse"), ("mse", "l1"))):
        columns = {"epoch": [1, 1], "train_loss": [0.2, 0.9], "dev_metric": [0.9, 0.1]}
        tried = [json.dumps({"loss": loss} if i else {"loss": {"kind": loss}}) for loss in losses]
        table = pa.table({"candidate": [0, 1], "candidate_json": tried, **columns})
        pq.write_table(table, grid.cells[i].folder / "history.parquet")
    curves = learning_curves(read_results(grid.cells[:3]))
    assert {c.loss: [run.seed for run in c.runs] for c in curves} == {"mse": [0, 2], "l1": [1]}
