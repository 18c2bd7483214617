"""Pretrained layer autoencoders: the result of `pretrain`, and its files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.fit.history import step_csv
from permafrost.stages.fit.trainer import Step
from permafrost.stages.freeze.config import AutoencoderConfig
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.metrics.records import (
    ELSEWHERE,
    HISTORY,
    LAYER_EPOCHS,
    LAYER_EPOCHS_ELSEWHERE,
)
from permafrost.storage.errors import CorruptDataError, NotFoundError

FORMAT = 1
_LEAST = 1e-10
"""Below this, a variance is that of rounding."""


@dataclass(frozen=True)
class LayerEpoch:
    """One layer after one epoch. Layers are numbered from 0 in the order of the latents, epochs from 1."""

    epoch: int
    layer: int
    train_mse: float
    """Mean over the epoch's steps, dropout on."""
    dev_mse: float
    """After the epoch, dropout off."""


@dataclass(frozen=True)
class ErrorsElsewhere:
    """How well another task's texts are reconstructed: is there a shift of domain (FREEZE!, 4.2.3)?"""

    mse: tuple[tuple[float, ...], ...]
    """By epoch and layer, after the epoch, dropout off."""
    variance: tuple[float, ...]
    """Of each layer's latents, mean over their numbers."""
    n_texts: int
    """How many were measured."""


@dataclass(frozen=True)
class AutoencoderResult:
    """The pretrained autoencoders, each layer at its own best epoch, and their history."""

    config: AutoencoderConfig
    n_layers: int
    d_model: int
    best: tuple[LayerEpoch, ...]
    """The best epoch of each layer."""
    history: tuple[LayerEpoch, ...]
    state: Mapping[str, Tensor]
    """Parameters by name."""
    log: tuple[Step, ...]
    """Every step; its loss is the mean over all layers."""
    dev_variance: tuple[float, ...]
    """Of each layer's latents of held-out texts, mean over their numbers."""
    elsewhere: ErrorsElsewhere | None = None
    """On other texts, where there are any."""

    @property
    def unexplained(self) -> tuple[float | None, ...]:
        """The share of each layer's variance that its best epoch does not reconstruct, on held-out texts;
        None where all of them are equal."""
        return _shares([e.dev_mse for e in self.best], self.dev_variance)

    @property
    def unexplained_elsewhere(self) -> tuple[float | None, ...]:
        """The same on other texts; empty where there are none."""
        if self.elsewhere is None:
            return ()
        errors = [self.elsewhere.mse[e.epoch - 1][e.layer] for e in self.best]
        return _shares(errors, self.elsewhere.variance)

    def autoencoders(self) -> LayerAutoencoders:
        """The pretrained autoencoders on the CPU, dropout off, without gradients."""
        return _restored(self.config, self.n_layers, self.d_model, self.state)

    def save(self, folder: Path) -> None:
        """Write autoencoders.safetensors, autoencoders.json, history.parquet and log.csv; where errors were
        measured on other texts, elsewhere.parquet too.

        `unexplained` in autoencoders.json is the share of variance, by layer, that is not reconstructed:
        whether an error that grows with depth (FREEZE!, figure 3) is one of norms or of compression.
        `unexplained_elsewhere` is that of other texts.
        """
        save_file(dict(self.state), folder / "autoencoders.safetensors")
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "best": [asdict(epoch) for epoch in self.best],
            "dev_variance": list(self.dev_variance),
            "unexplained": list(self.unexplained),
            "unexplained_elsewhere": list(self.unexplained_elsewhere),
            "n_elsewhere": 0 if self.elsewhere is None else self.elsewhere.n_texts,
            "n_parameters": sum(value.numel() for value in self.state.values()),
        }
        text = json.dumps(record, indent=2) + "\n"
        (folder / "autoencoders.json").write_text(text, encoding="utf-8")
        columns = {name: [getattr(e, name) for e in self.history] for name in LAYER_EPOCHS.names}
        table = pa.table(columns, schema=LAYER_EPOCHS)
        pq.write_table(table, folder / HISTORY)
        if self.elsewhere is not None:
            mse = np.array(self.elsewhere.mse)
            epochs, layers = np.indices(mse.shape)
            columns = {"epoch": 1 + epochs, "layer": layers, "mse": mse}
            flat = {name: values.ravel() for name, values in columns.items()}
            table = pa.table(flat, schema=LAYER_EPOCHS_ELSEWHERE)
            pq.write_table(table, folder / ELSEWHERE)
        by_epoch: dict[int, list[float]] = {}
        for e in self.history:
            by_epoch.setdefault(e.epoch, []).append(e.dev_mse)
        dev = {epoch: sum(errors) / len(errors) for epoch, errors in by_epoch.items()}
        lines = step_csv(self.log, "mse", "dev_mse", dev)
        (folder / "log.csv").write_text(lines, encoding="utf-8")


def _shares(errors: Sequence[float], variances: Sequence[float]) -> tuple[float | None, ...]:
    pairs = zip(errors, variances, strict=True)
    return tuple(error / v if v > _LEAST else None for error, v in pairs)


def _restored(
    config: AutoencoderConfig, n_layers: int, d_model: int, state: Mapping[str, Tensor]
) -> LayerAutoencoders:
    draw = torch.Generator().manual_seed(config.seed)
    autoencoders = LayerAutoencoders(config.encoders, n_layers, d_model, draw, config.joined)
    autoencoders.load_state_dict(dict(state))
    return autoencoders.requires_grad_(False).eval()


def load_autoencoders(folder: Path) -> LayerAutoencoders:
    """Load autoencoders that `AutoencoderResult.save` wrote, dropout off, without gradients.

    Raises:
        NotFoundError: the folder holds none.
        CorruptDataError: its files do not describe any.
    """
    try:
        record = json.loads((folder / "autoencoders.json").read_text(encoding="utf-8"))
        return _restored(
            AutoencoderConfig.model_validate(record["config"]),
            record["n_layers"],
            record["d_model"],
            load_file(folder / "autoencoders.safetensors"),
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no pretrained autoencoders: {error.filename} is missing"
        ) from error
    except (ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise CorruptDataError(
            f"the autoencoders in {folder} are damaged ({type(error).__name__}: {error}); delete the "
            "artifact and pretrain again"
        ) from error
