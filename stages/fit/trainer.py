"""The training loop: epochs, learning rates, clipping, early stopping, the best epoch on dev, resuming.

It trains a `Trainee`: a model with its optimiser, its batches in an order given by its seed, its loss and its
score on dev. The loop draws no random numbers, and no trainee may use torch's global generator, so trainers
can run in parallel threads.
Axes: p parts of a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import Progress

RATE_FACTOR = "rate_factor"
"""In a group of an optimiser's parameters: its share of the learning rate; 1 if it is not there."""

M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")
"""A batch."""


class Step(NamedTuple):
    """One step of the optimiser."""

    epoch: int
    """From 1."""
    step: int
    """From 1, over all epochs."""
    losses: tuple[float, ...]
    """The loss of each part of the model."""
    n_examples: int
    lr: float

    @property
    def loss(self) -> float:
        """The mean loss of the parts."""
        return sum(self.losses) / len(self.losses)


class Epoch(NamedTuple):
    """One pass over train."""

    epoch: int
    """From 1."""
    losses: tuple[float, ...]
    """The loss of each part, the mean over the examples of the pass."""
    dev: tuple[float, ...] | None
    """The score of each part; None if dev was not evaluated, or gave no score."""


class Best(NamedTuple):
    """The best epoch of a part on dev, the first of equal ones."""

    epoch: int
    dev: float


@dataclass(frozen=True)
class Plan:
    """How long to train, and how."""

    n_epochs: int
    """Maximum number of epochs."""
    n_steps: int
    """Steps per epoch."""
    patience: int | None = None
    """Training stops after this many epochs in a row without improvement on dev; None for never."""
    evaluate_every: int = 1
    """Epochs between evaluations on dev; the last epoch is always evaluated."""
    max_grad_norm: float | None = None
    """A larger gradient norm is clipped to this."""
    rate: Callable[[int], float] | None = None
    """Learning rate of a step, from 0; None keeps the optimiser's own."""


class Trainee(ABC, Generic[M, B]):
    """A model that can be trained.

    It may have parts that share no parameters, such as the autoencoders of the layers: each then has its own
    loss, score and best epoch. Most models have one part.
    """

    model: M
    optimizer: torch.optim.Optimizer
    noun: ClassVar[str] = "loss"
    """Name of the loss, for the display."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterable[B]:
        """The batches of an epoch, from 1; always the same for the same epoch."""

    @abstractmethod
    def loss(self, batch: B) -> tuple[Tensor, int]:
        """The loss of a batch, a scalar or `[p]`, and the number of examples it is the mean of."""

    def gradients(
        self, batch: B, require_finite: Callable[[Sequence[float]], None]
    ) -> tuple[list[float], int]:
        """Leave the gradients of a batch's loss in the parameters, which have none yet.

        A trainee that computes a batch in parts has its own way.

        Args:
            batch: one of `batches`.
            require_finite: called with the losses before their gradients are computed.

        Returns:
            The loss of each part of the model, and the number of examples it is the mean of.
        """
        loss, n_examples = self.loss(batch)
        losses: list[float] = loss.detach().reshape(-1).tolist()
        require_finite(losses)
        loss.sum().backward()
        return losses, n_examples

    @abstractmethod
    def dev(self) -> Sequence[float] | None:
        """The present scores on dev, `[p]`, higher is better; None if dev gives no score."""

    def state(self) -> dict[str, Any]:
        """What else a resumed training needs, tensors and plain values: nothing by default."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        return

    @abstractmethod
    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """The error to raise for a loss or dev score that is not finite; `what` says which and when."""

    def keep(self, kept: dict[str, Tensor], parts: Sequence[int]) -> None:
        """Copy these parts into `kept`, parameters and buffers on the CPU; it is empty at first."""
        # Cloned, since on the CPU training goes on changing the same memory.
        kept |= {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}

    def shown(self, dev: Sequence[float]) -> str:
        """Scores on dev, for the display."""
        return f", dev {dev[0]:.4f}"


def _never(_: Sequence[float]) -> bool:
    return False


@dataclass
class Trainer(Generic[M, B]):
    """Trains a trainee and keeps the best epoch of each of its parts."""

    trainee: Trainee[M, B]
    plan: Plan
    is_hopeless: Callable[[Sequence[float]], bool] = _never
    """Whether to stop, given the first part's scores so far."""
    history: list[Epoch] = field(default_factory=list[Epoch])
    log: list[Step] = field(default_factory=list[Step])
    best: list[Best] = field(default_factory=list[Best])
    """The best epoch of each part; empty before the first score on dev."""
    kept: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Parameters and buffers of each part's best epoch, on the CPU."""
    begun: list[Step] = field(default_factory=list[Step])
    """The steps of the epoch under way."""

    def run(
        self,
        progress: Progress,
        after_epoch: Callable[[], None] = lambda: None,
        after_step: Callable[[], None] = lambda: None,
    ) -> "Trainer[M, B]":
        """Train to the end from the present state; steps done earlier or saved by early stopping count as
        done. Both calls may save the state; after the last step of an epoch comes only `after_epoch`.

        Raises:
            PermafrostError: a loss, or a score on dev, is not finite.
        """
        progress.advance(self.plan.n_steps * len(self.history) + len(self.begun))
        while not self.is_over:
            note = next((self.trainee.shown(e.dev) for e in self.history[::-1] if e.dev), "")
            for step in self.steps(len(self.history) + 1, len(self.begun)):
                self.begun.append(step)
                progress.advance(1, f"{self.trainee.noun} {step.loss:.4f}{note}")
                if len(self.begun) < self.plan.n_steps:
                    after_step()
            self._end(self.begun)
            self.begun = []
            after_epoch()
        progress.advance(self.plan.n_steps * (self.plan.n_epochs - len(self.history)))
        return self

    @property
    def is_over(self) -> bool:
        """Whether training is finished."""
        plan, n = self.plan, len(self.history)
        best = max((b.epoch for b in self.best), default=0)
        scores = [e.dev[0] for e in self.history if e.dev is not None]
        return n >= 1 and (
            n >= plan.n_epochs
            or (plan.patience is not None and n - best >= plan.patience)
            or self.is_hopeless(scores)
        )

    def steps(self, epoch: int, n_done: int = 0) -> Iterator[Step]:
        """One pass over train without its first `n_done` steps; does not record anything."""
        trainee, plan, optimizer = self.trainee, self.plan, self.trainee.optimizer
        trainee.model.train()
        before = (epoch - 1) * plan.n_steps
        for i, batch in enumerate(trainee.batches(epoch)):
            if i < n_done:
                continue
            optimizer.zero_grad()
            require_finite = partial(self._require_finite, what=f"at epoch {epoch}, step {i}")
            losses, n_examples = trainee.gradients(batch, require_finite)
            if plan.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(trainee.model.parameters(), plan.max_grad_norm)
            if plan.rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = plan.rate(before + i) * group.get(RATE_FACTOR, 1.0)
            optimizer.step()
            lr = optimizer.param_groups[0]["lr"]
            yield Step(epoch, before + i + 1, tuple(losses), n_examples, lr)

    def _end(self, steps: Sequence[Step]) -> None:
        """After an epoch: evaluate dev, record, and keep the parts that improved."""
        epoch = len(self.history) + 1
        means = np.zeros(len(steps[0].losses))
        for step in steps:
            means += np.array(step.losses) * step.n_examples
        means /= sum(step.n_examples for step in steps)
        dev = None
        if epoch % self.plan.evaluate_every == 0 or epoch == self.plan.n_epochs:
            self.trainee.model.eval()
            dev = self.trainee.dev()
        if dev is not None:
            self._require_finite(dev, f"on dev after epoch {epoch}")
            self._keep(epoch, dev)
        scores = None if dev is None else tuple(dev)
        self.history.append(Epoch(epoch, tuple(means.tolist()), scores))
        self.log += steps

    def _keep(self, epoch: int, dev: Sequence[float]) -> None:
        self.best = self.best or [Best(epoch, float("-inf"))] * len(dev)
        if better := [p for p, score in enumerate(dev) if score > self.best[p].dev]:
            self.trainee.keep(self.kept, better)
        for part in better:
            self.best[part] = Best(epoch, dev[part])

    def _require_finite(self, values: Sequence[float], what: str) -> None:
        for part, value in enumerate(values):
            if not np.isfinite(value):
                raise self.trainee.broken(what, part, value)

    def state_dict(self) -> dict[str, Any]:
        """The state after an epoch or a step, for `load_state_dict`: tensors and plain values."""
        return {
            "begun": [tuple(step) for step in self.begun],
            "history": [tuple(epoch) for epoch in self.history],
            "log": [tuple(step) for step in self.log],
            "best": [tuple(best) for best in self.best],
            "kept": self.kept,
            "model": self.trainee.model.state_dict(),
            "optimizer": self.trainee.optimizer.state_dict(),
            "trainee": self.trainee.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of another trainer of the same trainee."""
        # Files of earlier versions were written after epochs only.
        self.begun = [Step(*step) for step in state.get("begun", ())]
        self.history = [Epoch(*epoch) for epoch in state["history"]]
        self.log = [Step(*step) for step in state["log"]]
        self.best = [Best(*best) for best in state["best"]]
        self.kept = dict(state["kept"])
        self.trainee.model.load_state_dict(state["model"])
        self.trainee.optimizer.load_state_dict(state["optimizer"])
        self.trainee.restore(state.get("trainee", {}))


def shuffled_batches(
    n: int, batch_size: int, seed: int, epoch: int, least: int = 1
) -> list[NDArray[np.int64]]:
    """Every example once, in an order given by (seed, epoch); a last batch smaller than `least` is merged
    into the one before it."""
    order = np.random.default_rng([seed, epoch]).permutation(n)
    stops = list(range(batch_size, n, batch_size))
    if stops and n - stops[-1] < least:
        stops.pop()
    return np.split(order, stops)
