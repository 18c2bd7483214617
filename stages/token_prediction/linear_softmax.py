"""A linear softmax over the vocabulary with a key of its own for every token, trained on stored vectors.

Source: Value Aggregation, appendix D, figures 5 and 6, name a linear softmax; that its keys are trained is
our second reading beside the map to the unembedding's rows (linear_map.py). The loss is convex in the keys,
which start at zero, so there is no seed of weights. Vectors are scaled to a mean square norm of 1. A step of
Adam moves every number of a key, and so a logit by about the square root of the width times the learning
rate: a backbone of four times the width needs half of it.

Axes: N tokens, D columns of a vector, V tokens of the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.extraction.unembedding import Unembedding
from permafrost.stages.fit.trainer import Plan, Trainer
from permafrost.stages.token_prediction.config import MapConfig
from permafrost.stages.token_prediction.linear_map import (
    Examples,
    OnVectors,
    Standard,
    infonce,
    mean_loss,
)
from permafrost.storage.progress import SilentProgress


@dataclass(frozen=True)
class TrainedKeys:
    """Standardised and scaled vectors, with a one behind them for the bias, against a key of every token."""

    standard: Standard
    keys: Float[Tensor, "v d_and_bias"]
    epoch: int
    """From 1; the one with the lowest loss on dev."""

    def queries(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d_and_bias"]:
        """Vectors to queries."""
        return nn.functional.pad(self.standard(rows) / rows.shape[1] ** 0.5, (0, 1), value=1.0)

    @property
    def scores(self) -> Unembedding:
        """What stands in the place of the backbone's own unembedding."""
        return Unembedding(self.keys, softcap=None)


def train_keys(config: MapConfig, train: Examples, dev: Examples, n_vocabulary: int) -> TrainedKeys:
    """Fit on train, keep the epoch with the lowest loss on dev.

    Raises:
        InputError: the loss is not finite.
    """
    trainee = KeysTrainee(config, train, dev, n_vocabulary)
    plan = Plan(config.max_epochs, len(trainee.batches(1)), config.patience)
    trainer = Trainer(trainee, plan).run(SilentProgress())
    return trainee.trained(trainer.kept["rows"].to(train.rows.device), trainer.best[0].epoch)


class KeysTrainee(OnVectors):
    """Keys for standardised and scaled vectors, a row a token."""

    def __init__(
        self, config: MapConfig, train: Examples, dev: Examples, n_vocabulary: int
    ) -> None:
        super().__init__(config, train, dev)
        shape = n_vocabulary, train.rows.shape[1] + 1
        self.model = nn.ParameterDict({"rows": torch.zeros(shape, device=train.rows.device)})
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)

    def trained(self, keys: Tensor, epoch: int) -> TrainedKeys:
        """The softmax with these keys."""
        return TrainedKeys(self.standard, keys, epoch)

    def loss(self, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """The mean loss of the batch's tokens."""
        rows, targets = self.taken(batch)
        keys = self.model["rows"]
        queries = self.trained(keys, 0).queries(rows)
        return infonce(queries, keys, targets, self.config.temperature).mean(), len(batch)

    @torch.no_grad()
    def dev(self) -> tuple[float]:
        """The negative mean loss on dev."""
        keys = self.model["rows"]
        now = self.trained(keys, 0)
        return (-mean_loss(now.queries, self.on_dev, keys, self.config.temperature),)
