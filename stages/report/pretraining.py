"""Pretraining curves: reconstruction error of the autoencoders of each third of the layers, by epoch.

FREEZE! (figure 3) shows such curves for early, middle and late layers. We differ: the paper does not say
which layers these are, whereas ours are thirds of those pretrained; and we show the error on held-out texts
beside that on train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64
from matplotlib.figure import Figure

from permafrost.stages.metrics.records import LAYER_EPOCHS
from permafrost.stages.report.entries import DASH
from permafrost.stages.report.frame import (
    add_line,
    log_scale,
    marks_of,
    panel_title,
    ring,
    rows_of_panels,
)
from permafrost.stages.report.palette import CONTROL, INK, MUTED, Mark
from permafrost.storage.errors import CorruptDataError, NotFoundError

_NAMES = {1: ("all",), 2: ("early", "late"), 3: ("early", "mid", "late")}
DEPTHS = {
    "all": Mark(INK, "^", (), filled=True),
    "early": Mark(CONTROL, "o", (1.0, 1.6), filled=True),
    "mid": Mark(MUTED, "s", (4.0, 1.6), filled=True),
    "late": Mark(INK, "^", (), filled=True),
}


@dataclass(frozen=True)
class ElsewhereRun:
    """Where the errors of a pretraining on another task's texts are."""

    task: str
    """Whose texts were measured."""
    errors: Path
    unexplained: tuple[float | None, ...] = ()
    """Share of each layer's variance that its kept epoch does not reconstruct, on these texts."""


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining run and its history file."""

    name: str
    task: str
    """The task whose texts were used."""
    history: Path
    layers: tuple[str, ...]
    """Names of the layers, in the order of their indices in the history."""
    kept: Literal["each", "together"] = "each"
    """Whether each layer is kept at its own best epoch, or all at that of the lowest mean error."""
    unexplained: tuple[float | None, ...] = ()
    """Share of each layer's variance that its kept epoch does not reconstruct, on held-out texts; empty where
    it was not recorded."""
    elsewhere: ElsewhereRun | None = None
    """On another task's texts, where they were measured."""


@dataclass(frozen=True)
class Depth:
    """A group of neighbouring layers: mean squared error of reconstruction, averaged over the layers."""

    name: str
    layers: tuple[str, ...]
    train_mse: Float64[np.ndarray, " n_epochs"]
    """Error on train during the epoch, with dropout."""
    dev_mse: Float64[np.ndarray, " n_epochs"]
    """Error on held-out texts after the epoch, without dropout."""
    kept_epochs: tuple[int, ...]
    """The kept epoch of each layer, see `Pretraining.kept`."""
    kept_train_mse: tuple[float, ...]
    kept_dev_mse: tuple[float, ...]

    @property
    def extent(self) -> str:
        """The first and the last layer, as printed."""
        first, last = self.layers[0], self.layers[-1]
        return first if first == last else f"{first} {DASH} {last}"


@dataclass(frozen=True)
class Pretraining:
    """The curves of one pretraining, from early to late layers."""

    name: str
    task: str
    epochs: Int64[np.ndarray, " n_epochs"]
    depths: tuple[Depth, ...]
    layers: tuple[str, ...]
    dev_mse: Float64[np.ndarray, "n_epochs n_layers"]
    """Error of every layer on held-out texts after every epoch."""
    unexplained: tuple[float | None, ...]
    kept: Literal["each", "together"] = "each"
    """As in `PretrainingRun`; of several epochs with the smallest error, the first."""


def read_pretrainings(runs: Sequence[PretrainingRun]) -> tuple[Pretraining, ...]:
    """The curves of all pretrainings, in their order.

    Raises:
        NotFoundError: a history file does not exist.
        CorruptDataError: a history file lacks a column, or does not have every layer in every epoch.
    """
    return tuple(_pretraining(run) for run in runs)


def pretraining_description(pretrainings: Sequence[Pretraining]) -> str:
    """Alternative text of the figure, with the errors after the last epoch."""
    ends = "; ".join(
        f"{p.name}, after epoch {p.epochs[-1]}: "
        + ", ".join(
            f"{d.name} {d.train_mse[-1]:.3g} on train, {d.dev_mse[-1]:.3g} held out"
            for d in p.depths
        )
        for p in pretrainings
    )
    return f"Line charts: error of reconstruction against epochs, by depth of the layers. {ends}."


def _pretraining(run: PretrainingRun) -> Pretraining:
    epochs, (train, dev) = read_by_layer(
        run.history,
        LAYER_EPOCHS,
        len(run.layers),
        run.name,
        f"the history of the pretraining {run.name}",
    )
    n_layers = len(run.layers)
    train_EL, dev_EL = (values.reshape(len(epochs), n_layers) for values in (train, dev))
    kept = dev_EL.argmin(0)
    if run.kept == "together":
        kept = np.full(n_layers, dev_EL.mean(1).argmin())
    depths: list[Depth] = []
    parts = [part for part in np.array_split(np.arange(n_layers), 3) if len(part)]
    for name, part in zip(_NAMES[len(parts)], parts, strict=True):
        depths.append(
            Depth(
                name=name,
                layers=tuple(run.layers[i] for i in part),
                train_mse=train_EL[:, part].mean(1),
                dev_mse=dev_EL[:, part].mean(1),
                kept_epochs=tuple(epochs[kept[part]].tolist()),
                kept_train_mse=tuple(train_EL[kept[part], part].tolist()),
                kept_dev_mse=tuple(dev_EL[kept[part], part].tolist()),
            )
        )
    return Pretraining(
        run.name,
        run.task,
        epochs.astype(np.int64),
        tuple(depths),
        run.layers,
        dev_EL,
        run.unexplained,
        run.kept,
    )


def read_by_layer(
    path: Path, schema: pa.Schema, n_layers: int, name: str, what: str
) -> tuple[Int64[np.ndarray, " n_epochs"], list[Float64[np.ndarray, " rows"]]]:
    """The epochs of a file with a row for each epoch and layer, and its other columns, epoch by epoch.

    Args:
        path: the file.
        schema: its columns, `epoch` and `layer` first.
        n_layers: of the pretraining.
        name: of the pretraining.
        what: what the file holds, for messages.

    Raises:
        NotFoundError: it does not exist.
        CorruptDataError: it lacks a column, or does not have every layer in every epoch.
    """
    where = f"{path} (pretraining {name})"
    try:
        table = pq.read_table(path, columns=schema.names)
    except FileNotFoundError as error:
        raise NotFoundError(f"{what} is not at {path}; run the experiment again") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise CorruptDataError(
            f"{where} cannot be read with the columns {schema.names}: {error}; pretrain again"
        ) from error
    table = table.sort_by([("epoch", "ascending"), ("layer", "ascending")])
    epoch, layer, *others = (table[column].to_numpy() for column in schema.names)
    epochs = np.unique(epoch)
    grid = np.stack(np.meshgrid(epochs, np.arange(n_layers), indexing="ij"), -1).reshape(-1, 2)
    if not np.array_equal(np.stack([epoch, layer], -1), grid):
        raise CorruptDataError(
            f"{where} has {len(epoch)} rows for {len(epochs)} epochs of {n_layers} layers, expected one for "
            "each; pretrain again"
        )
    return epochs, others


def pretraining_figure(pretrainings: Sequence[Pretraining]) -> Figure:
    """Mean squared error of reconstruction by epoch, on train and held out, by depth of the layers.

    A ring marks the kept epoch of a layer.
    """
    names = {depth.name for p in pretrainings for depth in p.depths}
    figure, panels = rows_of_panels(marks_of(DEPTHS, names), len(pretrainings))
    for pretraining, (left, right) in zip(pretrainings, panels, strict=True):
        panel_title(left, pretraining.name, "· error on train")
        panel_title(right, "error on held-out texts")
        right.sharey(left)
        right.tick_params(labelleft=False)
        for place, depth in enumerate(pretraining.depths):
            mark = DEPTHS[depth.name]
            add_line(left, mark, pretraining.epochs, depth.train_mse, place)
            add_line(right, mark, pretraining.epochs, depth.dev_mse, place)
            for epoch, error in zip(depth.kept_epochs, depth.kept_dev_mse, strict=True):
                ring(right, epoch, error, mark.colour, 5)
        log_scale(left)
        for axes in (left, right):
            axes.autoscale_view()
    return figure
