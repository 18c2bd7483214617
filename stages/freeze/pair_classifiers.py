"""Encoders of every layer, pretrained to tell the relation of two texts.

Source: FREEZE!'s released notebooks, which train encoders on 10,000 random pairs of SNLI and MultiNLI: the
codes u and v of two texts, [u ; v ; u - v], and a perceptron with one hidden layer of the same width to the
three classes. Layers share nothing. We differ: each is kept at its own best epoch on held-out pairs, where
the notebooks train on all pairs and keep the last epoch; batches are not cut.
Axes: n pairs, l layers, d width of a latent, k classes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.fit.checkpoint import Checkpoint, train_resumably
from permafrost.stages.fit.trainer import Plan, Trainee, Trainer, shuffled_batches
from permafrost.stages.freeze.config import ClassifierConfig
from permafrost.stages.freeze.encoder_sizes import EncoderSizes
from permafrost.stages.freeze.encoders import (
    ByLayer,
    LayerGroups,
    PretrainedEncoders,
    activation,
    autoencoder_encoders,
    copy_layers,
    dropout_states,
    load_dropout_states,
    rows_by_layer,
    xavier_linear,
)
from permafrost.stages.freeze.latents import LEAST, gather
from permafrost.stages.freeze.layerwise import (
    LayerwiseAdamW,
    held_out_pairs,
    keep_layers,
    rates_by_layer,
)
from permafrost.stages.freeze.pretrained import load_autoencoders
from permafrost.stages.freeze.scaling import scaling
from permafrost.storage.errors import CorruptDataError, InputError, PermafrostError
from permafrost.storage.progress import Progress

RECORD, STATE = "classifiers.json", "classifiers.safetensors"
FORMAT = 2


class LayerClassifiers(PretrainedEncoders):
    """One encoder and one perceptron per layer."""

    def __init__(
        self,
        sizes: EncoderSizes,
        n_layers: int,
        d_model: int,
        n_classes: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.sizes, self.n_classes, self.up = sizes, n_classes, None
        self.encoders = autoencoder_encoders(sizes, n_layers, d_model, generator)
        groups = zip(self.encoders.groups.sizes, self.encoders.widths, strict=True)
        perceptrons = [
            nn.Sequential(
                xavier_linear(n, 3 * width, 3 * width, generator),
                activation(sizes),
                xavier_linear(n, 3 * width, n_classes, generator),
            )
            for n, width in groups
        ]
        self.perceptrons = LayerGroups(self.encoders.groups.sizes, perceptrons)

    def forward(
        self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]
    ) -> Float[Tensor, "l n k"]:
        """Logits of the classes, of each layer."""
        pairs = zip(self.encoders(a), self.encoders(b), strict=True)
        return torch.cat(self.perceptrons([torch.cat([u, v, u - v], dim=-1) for u, v in pairs]))

    def by_layer(self) -> ByLayer:
        """For each layer the parameters that it is part of, and its row in them."""
        return rows_by_layer(self.encoders.groups, self.perceptrons)

    def of_layers(self, layers: Sequence[int]) -> "LayerClassifiers":
        """Copies of those of some layers, by their place from 0, ascending."""
        n_layers, d_model = self.encoders.n_layers, self.encoders.d_model
        sizes = self.sizes.of_layers(layers, n_layers)
        chosen = LayerClassifiers(sizes, len(layers), d_model, self.n_classes, torch.Generator())
        copy_layers(self.by_layer(), chosen.by_layer(), layers)
        return chosen


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of texts, as row indices into the latents, with their classes."""

    pairs: Int64[np.ndarray, "n 2"]
    labels: Int64[np.ndarray, " n"]
    n_classes: int


@dataclass(frozen=True)
class ClassifierResult:
    """Pretrained encoders, each layer at its own best epoch."""

    config: ClassifierConfig
    n_layers: int
    d_model: int
    n_classes: int
    epochs: tuple[int, ...]
    """The best epoch of each layer."""
    accuracy: tuple[float, ...]
    """Of each layer at that epoch, on the held-out pairs."""
    state: Mapping[str, Tensor]

    def classifiers(self) -> LayerClassifiers:
        """On the CPU, dropout off, without gradients."""
        sizes = (self.n_layers, self.d_model, self.n_classes)
        classifiers = LayerClassifiers(self.config.encoders, *sizes, torch.Generator())
        classifiers.load_state_dict(dict(self.state))
        return classifiers.requires_grad_(False).eval()

    def save(self, folder: Path) -> None:
        """Write classifiers.safetensors and classifiers.json."""
        save_file(dict(self.state), folder / STATE)
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_classes": self.n_classes,
            "epochs": self.epochs,
            "accuracy": self.accuracy,
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load_pretrained(folder: Path) -> PretrainedEncoders:
    """What heads start from: autoencoders, or encoders of a classification.

    Raises:
        NotFoundError: the folder holds neither.
        CorruptDataError: its files do not describe any.
    """
    if not (folder / RECORD).exists():
        return load_autoencoders(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        result = ClassifierResult(
            ClassifierConfig.model_validate(record["config"]),
            record["n_layers"],
            record["d_model"],
            record["n_classes"],
            tuple(record["epochs"]),
            tuple(record["accuracy"]),
            load_file(folder / STATE),
        )
        return result.classifiers()
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise CorruptDataError(
            f"the encoders in {folder} are damaged ({type(error).__name__}: {error}); delete the artifact "
            "and pretrain again"
        ) from error


def labelled_pairs(corpus: Corpus) -> LabelledPairs:
    """The train pairs of a corpus.

    Raises:
        InputError: not pairs with classes, or fewer than two.
        NotFoundError: there is no train split.
    """
    if corpus.task != "pair_classification":
        raise InputError(
            f"encoders are pretrained on pairs with classes, but the task is of kind {corpus.task}; give one "
            "of kind pair_classification, or pretrain autoencoders"
        )
    rows = corpus.split("train")
    if rows.num_rows < 2:
        raise InputError(
            f"encoders are trained on some pairs and chosen on others, but train has {rows.num_rows}; give "
            "at least 2"
        )
    pairs = np.stack([rows.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
    labels = rows.column("label").to_numpy().astype(np.int64)
    return LabelledPairs(pairs.astype(np.int64), labels, len(corpus.label_names))


def pretrain_classifiers(
    config: ClassifierConfig,
    latents: Float32[np.ndarray, "n l d"],
    pairs: LabelledPairs,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> ClassifierResult:
    """Train every layer's encoder and perceptron, and keep its best epoch by cross-entropy on held-out pairs.

    Args:
        config: sizes and training.
        latents: one row per text and layer.
        pairs: what is classified.
        progress: receives every step.
        device: where to compute.
        checkpoint: if a killed fit left it, that fit is resumed, with the result it would have had.

    Raises:
        InputError: see `held_out_pairs`.
        PermafrostError: a loss is not finite.
        CorruptDataError: the checkpoint is damaged.
    """
    trainee = ClassifierTrainee(config, latents, pairs, torch.device(device))
    trainer = Trainer(trainee, Plan(config.max_epochs, len(trainee.batches(1))))
    progress.start("pretrain encoders", trainer.plan.n_epochs * trainer.plan.n_steps, "steps")
    try:
        train_resumably(trainer, progress, checkpoint)
    finally:
        progress.finish()
    n_layers, d_model = latents.shape[1:]
    epochs = tuple(best.epoch for best in trainer.best)
    result = ClassifierResult(config, n_layers, d_model, pairs.n_classes, epochs, (), trainer.kept)
    trainee.model.load_state_dict(dict(trainer.kept))
    trainee.model.eval()
    return ClassifierResult(**{**vars(result), "accuracy": tuple(trainee.on_dev()[1])})


class ClassifierTrainee(Trainee[LayerClassifiers, NDArray[np.int64]]):
    """The encoders of all layers, each a part."""

    def __init__(
        self,
        config: ClassifierConfig,
        latents: NDArray[np.float32],
        pairs: LabelledPairs,
        device: torch.device,
    ) -> None:
        self.config, self.latents, self.pairs, self.device = config, latents, pairs, device
        n_layers, d_model = latents.shape[1:]
        self.train, self._dev = held_out_pairs(pairs.pairs, config.dev_share, config.seed)
        draw = torch.Generator().manual_seed(config.seed)
        model = LayerClassifiers(config.encoders, n_layers, d_model, pairs.n_classes, draw)
        self.model = model.to(device)
        self.scaling = scaling(config.scale, n_layers, d_model).to(device)
        texts = np.unique(pairs.pairs[self.train])
        n_parts = 1 + len(texts) // config.batch_size
        self.scaling.fit(
            lambda: (gather(latents, part, device) for part in np.array_split(texts, n_parts))
        )
        rates = rates_by_layer(config.lr, n_layers)
        self.optimizer = LayerwiseAdamW(model, rates, config.weight_decay)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Indices into the pairs held for training."""
        config = self.config
        return shuffled_batches(len(self.train), config.batch_size, config.seed, epoch, LEAST)

    def loss(self, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """Each layer's cross-entropy."""
        return self._entropies(self.train[batch])[0], len(batch)

    def dev(self) -> list[float]:
        """Minus each layer's cross-entropy on the held-out pairs."""
        return [-value for value in self.on_dev()[0]]

    @torch.no_grad()
    def on_dev(self) -> tuple[list[float], list[float]]:
        """Each layer's cross-entropy and accuracy on the held-out pairs."""
        n_layers = self.latents.shape[1]
        totals_2L = torch.zeros(2, n_layers, dtype=torch.float64, device=self.device)
        for start in range(0, len(self._dev), self.config.batch_size):
            batch = self._dev[start : start + self.config.batch_size]
            totals_2L += torch.stack(self._entropies(batch)) * len(batch)
        entropy, accuracy = (totals_2L / len(self._dev)).tolist()
        return entropy, accuracy

    def _entropies(self, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        a, b = (
            self.scaling(gather(self.latents, side, self.device))
            for side in self.pairs.pairs[chosen].T
        )
        logits_LNK = self.model(a, b)
        labels_N = torch.from_numpy(self.pairs.labels[chosen]).to(self.device)
        labels_LN = labels_N.expand(len(logits_LNK), -1)
        losses_LN = nn.functional.cross_entropy(logits_LNK.mT, labels_LN.long(), reduction="none")
        right_LN = (logits_LNK.argmax(-1) == labels_LN).float()
        return losses_LN.mean(1), right_LN.mean(1)

    def keep(self, kept: dict[str, Tensor], parts: Sequence[int]) -> None:
        """Copy the rows of these layers."""
        if not kept:
            super().keep(kept, parts)
        else:
            keep_layers(self.model, kept, parts)

    def shown(self, dev: Sequence[float]) -> str:
        """Nothing, as there are too many layers to show."""
        return ""

    def state(self) -> dict[str, Any]:
        """Where dropout's generators are."""
        return dropout_states(self.model)

    def restore(self, state: dict[str, Any]) -> None:
        """Dropout goes on as it would have."""
        load_dropout_states(self.model, state, self.device)

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the layer and the learning rate."""
        return PermafrostError(
            f"the cross-entropy of layer {part} (from 0) is {abs(value)} {what} with lr {self.config.lr}; "
            "lower lr, or check the features with 'permafrost verify'"
        )
