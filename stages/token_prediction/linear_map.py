"""A linear map from stored vectors to queries, trained so that the next token's unembedding row is nearest.

Source: Value Aggregation, proposition D.3: the next-token loss of a language model at temperature t is
InfoNCE with the rows of the unembedding as keys and all other rows as negatives. Here the query is an affine
map of a vector of any layer instead of the final state; the keys stay as they are. The loss is convex in the
map, which starts at zero, so there is no seed of weights.

Axes: N tokens, D columns of a vector, K columns of a key, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.extraction.unembedding import Unembedding
from permafrost.stages.fit.trainer import Plan, Trainee, Trainer, shuffled_batches
from permafrost.stages.token_prediction.config import MapConfig
from permafrost.stages.token_prediction.ranks import reciprocal_ranks, target_ranks
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress

_NO_SPREAD = 1e-6
"""Columns of the training vectors that vary by less than this are taken as constant."""
_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Examples:
    """Vectors and the tokens that follow."""

    rows: Float[Tensor, "n d"]
    targets: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Quality:
    """How well tokens are predicted."""

    nll: float
    """Mean negative log-likelihood, nats per token."""
    accuracy: float
    """Share of tokens that are ranked first."""
    mrr: float
    """Mean reciprocal rank, 0 beyond the cutoff."""


@dataclass(frozen=True)
class Standard:
    """Vectors standardised by the training vectors."""

    mean: Float[Tensor, " d"]
    spread: Float[Tensor, " d"]

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"]) -> "Standard":
        """By these; a column that hardly varies is only shifted."""
        mean, spread = rows.mean(0), rows.std(0, correction=0)
        return cls(mean, torch.where(spread > _NO_SPREAD, spread, torch.ones_like(spread)))

    def __call__(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The same rows, standardised."""
        return (rows - self.mean) / self.spread


@dataclass(frozen=True)
class TrainedMap:
    """Queries of vectors: standardised by the training vectors, then mapped."""

    standard: Standard
    weight: Float[Tensor, "d k"]
    bias: Float[Tensor, " k"]
    epoch: int
    """From 1; the one with the lowest loss on dev."""

    def queries(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Vectors to queries."""
        return self.standard(rows) @ self.weight + self.bias


def infonce(
    queries: Float[Tensor, "n k"],
    keys: Float[Tensor, "v k"],
    positives: Int64[Tensor, " n"],
    temperature: float,
) -> Float[Tensor, " n"]:
    """-log of a query's share of its positive key among all keys, by exp(dot product / temperature)."""
    return nn.functional.cross_entropy(queries @ keys.T / temperature, positives, reduction="none")


def train_map(
    config: MapConfig,
    train: Examples,
    dev: Examples,
    keys: Float[Tensor, "v k"],
) -> TrainedMap:
    """Fit on train, keep the epoch with the lowest loss on dev.

    Raises:
        InputError: the loss is not finite.
    """
    trainee = MapTrainee(config, train, dev, keys)
    plan = Plan(config.max_epochs, len(trainee.batches(1)), config.patience)
    trainer = Trainer(trainee, plan).run(SilentProgress())
    weight, bias = (trainer.kept[name].to(keys.device) for name in ("weight", "bias"))
    return trainee.trained(weight, bias, trainer.best[0].epoch)


class OnVectors(Trainee[nn.ParameterDict, NDArray[np.int64]]):
    """Something that is trained on standardised vectors and the tokens that follow."""

    def __init__(self, config: MapConfig, train: Examples, dev: Examples) -> None:
        self.config, self.train, self.on_dev = config, train, dev
        self.standard = Standard.of(train.rows)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Indices of examples."""
        config = self.config
        return shuffled_batches(len(self.train.targets), config.batch_size, config.seed, epoch)

    def taken(self, batch: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Rows and targets of a batch."""
        indices = torch.from_numpy(batch).to(self.train.rows.device)
        return self.train.rows[indices], self.train.targets[indices]

    def broken(self, what: str, part: int, value: float) -> InputError:
        """An error that names the learning rate."""
        return InputError(
            f"the loss of a next-token probe is {abs(value)} {what} with lr {self.config.lr}; lower lr"
        )


class MapTrainee(OnVectors):
    """A map of standardised vectors to keys of one size."""

    def __init__(self, config: MapConfig, train: Examples, dev: Examples, keys: Tensor) -> None:
        super().__init__(config, train, dev)
        self.keys = keys
        # Whatever the size of the checkpoint's keys: the map takes up the factor, and lr means the same.
        self.scale = keys.square().sum(1).mean().sqrt()
        self.model = nn.ParameterDict(
            {
                "weight": torch.zeros(train.rows.shape[1], keys.shape[1], device=keys.device),
                "bias": torch.zeros(keys.shape[1], device=keys.device),
            }
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)

    def trained(self, weight: Tensor, bias: Tensor, epoch: int) -> TrainedMap:
        """The map with these parameters."""
        return TrainedMap(self.standard, weight / self.scale, bias / self.scale, epoch)

    def loss(self, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """The mean loss of the batch's tokens."""
        rows, targets = self.taken(batch)
        queries = self.standard(rows) @ self.model["weight"] + self.model["bias"]
        losses = infonce(queries, self.keys / self.scale, targets, self.config.temperature)
        return losses.mean(), len(batch)

    @torch.no_grad()
    def dev(self) -> tuple[float]:
        """The negative mean loss on dev."""
        now = self.trained(self.model["weight"], self.model["bias"], 0)
        return (-mean_loss(now.queries, self.on_dev, self.keys, self.config.temperature),)


def quality(
    examples: Examples,
    queries: Callable[[Tensor], Tensor],
    unembedding: Unembedding,
    temperature: float,
    cutoff: int,
) -> Quality:
    """The loss at the temperature, accuracy and MRR@cutoff of the unembedding's scores of the queries."""
    total, ranks = 0.0, list[Tensor]()
    for rows, targets in _parts(examples):
        mapped = queries(rows)
        logits = unembedding.logits(mapped) / temperature
        total += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
        ranks.append(target_ranks(mapped, unembedding, targets[:, None])[:, 0])
    return from_ranks(torch.cat(ranks).cpu().numpy(), total, cutoff)


def from_ranks(ranks: Int64[np.ndarray, " n"], total_nll: float, cutoff: int) -> Quality:
    """Accuracy and MRR of ranks, and the mean of a sum of losses."""
    return Quality(
        nll=total_nll / len(ranks),
        accuracy=float(np.mean(ranks == 1)),
        mrr=float(reciprocal_ranks(ranks, cutoff).mean()),
    )


def mean_loss(
    queries: Callable[[Tensor], Tensor], examples: Examples, keys: Tensor, temperature: float
) -> float:
    """The mean of `infonce` over all examples."""
    losses = [
        infonce(queries(rows), keys, targets, temperature).sum()
        for rows, targets in _parts(examples)
    ]
    return float(torch.stack(losses).sum()) / len(examples.targets)


def _parts(examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(
        examples.rows.split(_ROWS_AT_A_TIME),
        examples.targets.split(_ROWS_AT_A_TIME),
        strict=True,
    )
