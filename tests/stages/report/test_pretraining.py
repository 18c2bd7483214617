"""Pretraining curves: from the history of a real pretraining to figure, table and page."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from permafrost.stages.freeze import AutoencoderConfig, EncoderSizes
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.pretraining import (
    ElsewhereRun,
    PretrainingRun,
    pretraining_description,
    pretraining_figure,
    read_pretrainings,
)
from permafrost.stages.report.pretraining_elsewhere import (
    elsewhere_description,
    elsewhere_figure,
    elsewhere_table,
    read_elsewhere,
)
from permafrost.stages.report.pretraining_layers import by_layer_figure, by_layer_table
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.progress import SilentProgress
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

N_LAYERS = 4


def write_history(path: Path, n_epochs: int = 5, n_layers: int = N_LAYERS) -> pa.Table:
    """Errors that differ everywhere; layer i is least on held-out texts at epoch i + 1."""
    rng = np.random.default_rng(3)
    epoch, layer = np.meshgrid(np.arange(1, n_epochs + 1), np.arange(n_layers), indexing="ij")
    train = rng.uniform(1, 2, epoch.shape) * 10.0**layer
    dev = train + np.abs(epoch - 1 - layer)
    columns = {"epoch": epoch, "layer": layer, "train_mse": train, "dev_mse": dev}
    table = pa.table({name: values.ravel() for name, values in columns.items()})
    pq.write_table(table.take(rng.permutation(table.num_rows)), path)
    return table


@pytest.fixture
def run(tmp_path: Path) -> PretrainingRun:
    write_history(tmp_path / "history.parquet")
    return PretrainingRun("encoders", "generic", tmp_path / "history.parquet", ("1", "2", "3", "4"))


def errors(run: PretrainingRun, column: str, layers: list[int]) -> np.ndarray:
    rows = pq.read_table(run.history).to_pylist()
    return np.array(
        [
            [r[column] for r in rows if (r["epoch"], r["layer"]) == (epoch, layer)]
            for epoch in range(1, 6)
            for layer in layers
        ]
    ).reshape(5, len(layers))


def test_depths_are_thirds_of_the_layers_and_means_over_them(run: PretrainingRun):
    (found,) = read_pretrainings([run])
    assert found.epochs.tolist() == [1, 2, 3, 4, 5]
    assert [(d.name, d.layers) for d in found.depths] == [
        ("early", ("1", "2")),
        ("mid", ("3",)),
        ("late", ("4",)),
    ]
    for depth, layers in zip(found.depths, ([0, 1], [2], [3]), strict=True):
        for mine, column in ((depth.train_mse, "train_mse"), (depth.dev_mse, "dev_mse")):
            assert mine.tolist() == pytest.approx(errors(run, column, layers).mean(1).tolist())
        held, kept = errors(run, "dev_mse", layers), errors(run, "dev_mse", layers).argmin(0)
        assert depth.kept_epochs == tuple(kept + 1)
        assert depth.kept_dev_mse == pytest.approx(held.min(0).tolist())
        train = errors(run, "train_mse", layers)
        assert depth.kept_train_mse == pytest.approx(
            [train[epoch, i] for i, epoch in enumerate(kept)]
        )


@pytest.mark.parametrize(
    ("n_layers", "names"), [(1, ["all"]), (2, ["early", "late"]), (7, ["early", "mid", "late"])]
)
def test_few_layers_have_fewer_depths(tmp_path: Path, n_layers: int, names: list[str]):
    path = tmp_path / "history.parquet"
    write_history(path, n_layers=n_layers)
    layers = tuple(str(i + 1) for i in range(n_layers))
    (found,) = read_pretrainings([PretrainingRun("p", "t", path, layers)])
    assert [d.name for d in found.depths] == names
    assert [layer for d in found.depths for layer in d.layers] == list(layers)


def test_what_a_pretraining_saves_is_what_is_drawn(tmp_path: Path):
    latents = np.random.default_rng(0).normal(size=(40, N_LAYERS, 8)).astype(np.float32)
    config = AutoencoderConfig(
        encoders=EncoderSizes(early=3, late=4), max_epochs=3, batch_size=16, dev_share=0.2, seed=0
    )
    result = pretrain(config, latents, SilentProgress())
    result.save(tmp_path)
    run = PretrainingRun("p", "t", tmp_path / "history.parquet", ("1", "2", "3", "4"))
    (found,) = read_pretrainings([run])
    kept = [epoch for depth in found.depths for epoch in depth.kept_epochs]
    assert kept == [best.epoch for best in result.best]
    held = [error for depth in found.depths for error in depth.kept_dev_mse]
    assert held == [best.dev_mse for best in result.best]


def test_the_figure_has_a_line_per_depth_and_a_ring_per_layer(run: PretrainingRun):
    (found,) = read_pretrainings([run])
    with drawing():
        figure = pretraining_figure([found])
    train, held = figure.axes
    assert train.get_title(loc="left") == "encoders · error on train"
    assert train.get_yscale() == held.get_yscale() == "log"
    lines = [line for line in train.lines if line.get_linestyle() != "None"]
    assert [line.get_ydata().tolist() for line in lines] == [  # pyright: ignore[reportAttributeAccessIssue]
        depth.train_mse.tolist() for depth in found.depths
    ]
    rings = [line for line in held.lines if line.get_linestyle() == "None"]
    drawn = {(r.get_xdata()[0], r.get_ydata()[0]) for r in rings}  # pyright: ignore[reportIndexIssue]
    assert drawn == {
        point for d in found.depths for point in zip(d.kept_epochs, d.kept_dev_mse, strict=True)
    }


def test_layers_that_share_an_embedding_are_kept_together(run: PretrainingRun):
    (each,), (together,) = (
        read_pretrainings([replace(run, kept=how)]) for how in ("each", "together")
    )
    assert len({e for d in each.depths for e in d.kept_epochs}) > 1
    means = errors(run, "dev_mse", [0, 1, 2, 3]).mean(1)
    assert {e for d in together.depths for e in d.kept_epochs} == {int(means.argmin()) + 1}
    assert (each.kept, together.kept) == ("each", "together")


def test_every_layer_has_a_line_and_its_share_of_variance(run: PretrainingRun):
    shares = (0.1, 0.2, None, 0.4)
    (found,) = read_pretrainings([replace(run, unexplained=shares)])
    with drawing():
        left, right = by_layer_figure([found]).axes
    assert left.get_yscale() == "linear"
    drawn = [np.asarray(line.get_ydata()).tolist() for line in left.lines]
    assert drawn == errors(run, "dev_mse", [0, 1, 2, 3]).T.tolist()
    (line,) = right.lines
    assert np.asarray(line.get_xdata()).tolist() == [0, 1, 3]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([10, 20, 40])
    rows = by_layer_table(found).rows
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[3] for row in rows] == ["10.0", "20.0", "–", "40.0"]
    assert [row[1] for row in rows] == [str(e) for d in found.depths for e in d.kept_epochs]


def elsewhere_of(run: PretrainingRun, folder: Path, factors: np.ndarray) -> PretrainingRun:
    """Errors on other texts: those on held-out ones times a factor for every epoch `[5]`."""
    rows = pq.read_table(run.history).to_pylist()
    columns = {
        "epoch": [r["epoch"] for r in rows],
        "layer": [r["layer"] for r in rows],
        "mse": [r["dev_mse"] * factors[r["epoch"] - 1] for r in rows],
    }
    pq.write_table(pa.table(columns), folder / "elsewhere.parquet")
    other = ElsewhereRun("STS-B", folder / "elsewhere.parquet", (0.5, 0.7, None, 0.9))
    return replace(run, unexplained=(0.1, 0.3, 0.2, 0.4), elsewhere=other)


def test_errors_on_another_tasks_texts_are_drawn_over_those_held_out(
    run: PretrainingRun, tmp_path: Path
):
    factors = np.array([9.0, 8.0, 6.0, 5.0, 4.0])
    both = [run, elsewhere_of(run, tmp_path, factors)]
    (found,) = read_elsewhere(both, read_pretrainings(both))
    with drawing():
        left, right = elsewhere_figure([found]).axes
    lines = [np.asarray(line.get_ydata()) for line in right.lines]
    assert len(lines) == 3
    for line in lines:
        np.testing.assert_allclose(line, factors)
    for line, depth in zip(left.lines, found.own.depths, strict=True):
        np.testing.assert_allclose(np.asarray(line.get_ydata()), factors * depth.dev_mse)
    assert left.get_title(loc="left") == "encoders · error on STS-B"
    table = elsewhere_table(found)
    assert table.header[2:6] == (
        *("above by, epoch 1", "above by, epoch 5"),
        *("times, epoch 1", "times, epoch 5"),
    )
    for row, depth in zip(table.rows, found.own.depths, strict=True):
        assert row[2:4] == (f"{8 * depth.dev_mse[0]:.3g}", f"{3 * depth.dev_mse[-1]:.3g}")
    assert [row[4:] for row in table.rows] == [
        ("9", "4", "20.0", "60.0"),
        ("9", "4", "20.0", "–"),
        ("9", "4", "40.0", "90.0"),
    ]
    assert "late 4 times held-out after epoch 5 (9 after the first)" in elsewhere_description(
        [found]
    )


def test_errors_elsewhere_that_are_missing_damaged_or_of_other_layers_are_named(
    run: PretrainingRun, tmp_path: Path
):
    measured = elsewhere_of(run, tmp_path, np.ones(5))
    curves, path = read_pretrainings([measured]), tmp_path / "elsewhere.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(CorruptDataError, match="19 rows for 5 epochs of 4 layers"):
        read_elsewhere([measured], curves)
    shorter = [r for r in pq.read_table(run.history).to_pylist() if r["epoch"] < 5]
    rows = [{"epoch": r["epoch"], "layer": r["layer"], "mse": 1.0} for r in shorter]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(CorruptDataError, match="has 4 epochs and the history has 5"):
        read_elsewhere([measured], curves)
    pq.write_table(pa.table({"epoch": [1]}), path)
    with pytest.raises(CorruptDataError, match=r"pretraining encoders\) cannot be read with"):
        read_elsewhere([measured], curves)
    path.unlink()
    with pytest.raises(NotFoundError, match="pretraining encoders on STS-B is not at"):
        read_elsewhere([measured], curves)


@pytest.mark.deep
@pytest.mark.drawn
def test_the_page_shows_figure_and_numbers(make_grid, run: PretrainingRun, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    grid.pretrainings = [elsewhere_of(run, tmp_path, np.full(5, 2.0))]
    folder = grid.write(tmp_path / "report")
    page = Page(folder / "report.html")
    assert {"href": "#pretraining"} in page.all("a")
    section = page.source[page.source.index('id="pretraining"') : page.source.index('id="tokens"')]
    assert section.count(' role="img"') == 3
    assert "Reconstruction of STS-B against held-out texts" in (folder / "tables.md").read_text()
    assert not re.search(r"#[0-9a-f]{6}", section)
    (found,) = read_pretrainings([run])
    for depth in found.depths:
        assert [
            depth.name,
            depth.extent,
            f"{depth.train_mse[0]:.4g}",
            f"{depth.train_mse[-1]:.4g}",
            f"{np.mean(depth.kept_train_mse):.4g}",
            f"{np.mean(depth.kept_dev_mse):.4g}",
            ", ".join(map(str, depth.kept_epochs)) + " of 5",
        ] in page.rows
    late = found.depths[-1]
    assert f"late {late.train_mse[-1]:.3g} on train" in pretraining_description([found])
    with Image.open(folder / "figures" / "pretraining.png") as picture:
        assert picture.width > 600


def test_without_a_pretraining_nothing_of_it_is_there(written: Path):
    assert 'id="pretraining"' not in (written / "report.html").read_text()
    assert not (written / "figures" / "pretraining.png").exists()


def test_a_history_that_is_missing_damaged_or_of_other_layers_is_named(run: PretrainingRun):
    other = PretrainingRun("encoders", "generic", run.history, ("1", "2"))
    with pytest.raises(CorruptDataError, match="20 rows for 5 epochs of 2 layers"):
        read_pretrainings([other])
    pq.write_table(pa.table({"epoch": [1]}), run.history)
    with pytest.raises(CorruptDataError, match=r"pretraining encoders\) cannot be read with"):
        read_pretrainings([run])
    run.history.unlink()
    with pytest.raises(NotFoundError, match="history of the pretraining encoders is not at"):
        read_pretrainings([run])
