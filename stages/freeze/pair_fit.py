"""A trained pair head: the pairs it learns from, the result of a fit, and its files."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.fit.choice import Fitted, Form
from permafrost.stages.fit.history import step_csv
from permafrost.stages.fit.trainer import Step
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.pair_heads import PairHead, Unified
from permafrost.stages.freeze.scaling import scaling
from permafrost.stages.kinds import require_known
from permafrost.stages.metrics.records import EPOCHS, HISTORY
from permafrost.stages.metrics.tested_epochs import TEST_BY_EPOCH, TESTED_EPOCHS
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError

FORMAT = 1


def new_head(config: PairFitConfig, n_layers: int, d_model: int) -> PairHead:
    """A head as it is before training, on the CPU; the same seed gives the same weights.

    Raises:
        InputError: the sizes do not fit the head; or it builds none, as a plug-in's may.
    """
    draw = torch.Generator().manual_seed(config.seed)
    head: object = config.head.build(n_layers, d_model, draw)
    if not isinstance(head, PairHead):
        raise InputError(
            f"{type(config.head).__name__}.build gave {type(head).__name__}, which is no PairHead; return "
            "one (permafrost.stages.freeze.layers_head.PairHead)"
        )
    head.scaling = scaling(config.scale, n_layers, d_model)
    return head


@dataclass(frozen=True)
class PairEpoch:
    """A head after one epoch, counted from 1."""

    epoch: int
    train_loss: float
    """Mean over the epoch's pairs, dropout on."""
    dev_metric: float | None
    """None in an epoch without evaluation, or where all predictions are equal."""


@dataclass(frozen=True)
class PairFitResult:
    """The best head of a fit, and its history."""

    config: PairFitConfig
    n_layers: int
    d_model: int
    best: PairEpoch
    history: tuple[PairEpoch, ...]
    """Every epoch; the last one is the result without a choice on dev."""
    state: Mapping[str, Tensor]
    """Parameters and buffers of the best epoch by name."""
    log: tuple[Step, ...] = ()
    """Every step; not read back."""
    candidate: int | None = None
    """Which one of a grid it is, from 0; None for a fit of its own."""
    test_by_epoch: tuple[tuple[int, float], ...] = ()
    """Evaluated epochs and the metric on test after each, if it was to be kept; not read back."""

    def head(self) -> PairHead:
        """The trained head on the CPU, dropout off, without gradients."""
        head = new_head(self.config, self.n_layers, self.d_model)
        head.load_state_dict(dict(self.state))
        return head.requires_grad_(False).eval()

    def coder(self) -> Unified:
        """The same, of a kind that has a vector for a text."""
        head = self.head()
        assert isinstance(head, Unified), "what heads with a vector build"
        return head

    def save(self, folder: Path) -> None:
        """Write pair_head.safetensors, pair_head.json, history.parquet and log.csv; test_by_epoch.parquet if
        the test scores by epoch were kept."""
        save_file(dict(self.state), folder / "pair_head.safetensors")
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "best": asdict(self.best),
            "n_parameters": self.head().n_parameters,
        }
        text = json.dumps(record, indent=2) + "\n"
        (folder / "pair_head.json").write_text(text, encoding="utf-8")
        columns = {name: [getattr(e, name) for e in self.history] for name in EPOCHS.names}
        table = pa.table(columns, schema=EPOCHS)
        pq.write_table(table, folder / HISTORY)
        if self.test_by_epoch:
            epochs, scores = zip(*self.test_by_epoch, strict=True)
            by_epoch = pa.table([epochs, scores], schema=TESTED_EPOCHS)
            pq.write_table(by_epoch, folder / TEST_BY_EPOCH)
        dev = {e.epoch: e.dev_metric for e in self.history if e.dev_metric is not None}
        lines = step_csv(self.log, "loss", "dev_metric", dev)
        (folder / "log.csv").write_text(lines, encoding="utf-8")


def load_pair_fit(folder: Path) -> PairFitResult:
    """Load a fit that `PairFitResult.save` wrote.

    Raises:
        NotFoundError: the folder holds no pair head.
        InputError: it is of a kind that is not known here.
        CorruptDataError: its files do not describe one.
    """
    try:
        record = json.loads((folder / "pair_head.json").read_text(encoding="utf-8"))
        rows = _epochs(folder, record.get("candidate")).to_pylist()
        result = PairFitResult(
            PairFitConfig.model_validate(record["config"]),
            record["n_layers"],
            record["d_model"],
            PairEpoch(**record["best"]),
            tuple(PairEpoch(**row) for row in rows),
            load_file(folder / "pair_head.safetensors"),
            candidate=record.get("candidate"),
        )
        result.head()
    except FileNotFoundError as error:
        missing = error.filename or HISTORY
        raise NotFoundError(f"{folder} holds no trained pair head: {missing} is missing") from error
    except (ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the pair head in {folder}")
        raise _damaged(folder, error) from error
    return result


def _damaged(folder: Path, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"the pair head in {folder} is damaged ({type(error).__name__}: {error}); delete the artifact and "
        "run the fit again"
    )


def _epochs(folder: Path, candidate: int | None) -> pa.Table:
    """The history of a fit, or of the candidate that was kept."""
    table = pq.read_table(folder / HISTORY)
    if candidate is not None:
        table = table.filter(pc.equal(table.column("candidate"), candidate))
    return table.select(EPOCHS.names)


def _fitted(folder: Path) -> Fitted:
    try:
        record = json.loads((folder / "pair_head.json").read_text(encoding="utf-8"))
        return Fitted(record, record["config"], record["best"]["dev_metric"])
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no trained pair head: {error.filename} is missing"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(folder, error) from error


PAIR_HEAD = Form("pair_head.json", "pair_head.safetensors", _fitted)
"""Heads on every layer."""
