"""A candidate in training: its model, one epoch, and its answers.

Nothing is drawn from torch's global generator, so fits may run side by side in threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from permafrost.stages.fit.batches import per_text, to_tensors
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.models import Predictions, TaskFacts, TaskModel, build_model
from permafrost.stages.fit.optim import make_optimizer, rate
from permafrost.stages.fit.sources import Source
from permafrost.storage.errors import InputError, PermafrostError


class Step(NamedTuple):
    """One step of the optimiser."""

    loss: float
    examples: int
    lr: float


@dataclass(frozen=True)
class Run:
    """The model of a candidate while it is trained."""

    model: TaskModel
    optimizer: torch.optim.Optimizer

    def state(self) -> dict[str, Tensor]:
        """A copy of the parameters and buffers."""
        return {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}


def start_run(config: FitConfig, facts: TaskFacts, d_in: int, device: torch.device) -> Run:
    """A fresh model of a candidate; the same seed gives the same weights on every device.

    Raises:
        InputError: it has nothing to train.
    """
    model = build_model(config, facts, d_in).to(device)
    if not any(
        p.requires_grad for p in model.parameters()
    ):  # of fixed heads, the splits have said so
        raise InputError(
            f"head {config.head.kind} has no parameters with these settings and loss {config.loss.kind} "
            "adds none, so there is nothing to train; use another head"
        )
    return Run(model, make_optimizer(config.optim, model.parameters()))


def train_epoch(
    run: Run, config: FitConfig, train: Source, epoch: int, device: torch.device
) -> Iterator[Step]:
    """One pass over train."""
    run.model.train()
    optim = config.optim
    per_epoch = -(-len(train.labels) // optim.batch_size)
    n_steps = per_epoch * optim.limits(len(train.labels)).n_epochs
    batches = train.shuffled(optim.batch_size, config.seed, epoch)
    for step, (picked, rows) in enumerate(batches):
        encoded = encode(run.model, optim.precision, *to_tensors(rows, device))
        labels = torch.from_numpy(train.labels[picked]).to(device)
        loss = run.model.loss(encoded, labels)
        value = loss.item()
        if not np.isfinite(value):
            raise PermafrostError(
                f"the loss is {value} at epoch {epoch}, step {step} of the candidate "
                f"{config.model_dump_json(exclude={'grid'})} with optim.lr {optim.lr}; lower "
                "optim.lr, or check the features with 'permafrost verify'"
            )
        run.optimizer.zero_grad()
        loss.backward()
        if optim.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), optim.max_grad_norm)
        lr = rate(optim, (epoch - 1) * per_epoch + step, n_steps)
        for group in run.optimizer.param_groups:
            group["lr"] = lr
        run.optimizer.step()
        yield Step(value, len(picked), lr)


def encode(
    model: TaskModel, precision: str, tokens: Tensor, offsets: Tensor
) -> Float[Tensor, "n e"]:
    """Encodings of texts in float32, computed in the precision of training."""
    if precision == "float32":
        return model(tokens, offsets)
    # Casts instead of autocast, which does not reach into the backward passes that heads write out.
    # Gradients arrive at the float32 parameters; batch normalisation keeps its own in float32.
    kept = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()}
    low = {n: p if id(p) in kept else p.bfloat16() for n, p in model.named_parameters()}
    encoded: Tensor = functional_call(model, low, (tokens.bfloat16(), offsets))
    return encoded.float()


def predict(model: TaskModel, source: Source, batch_size: int, device: torch.device) -> Predictions:
    """Answers to every example of a split, every distinct text of pairs encoded once.

    Raises:
        PermafrostError: an encoding is not finite.
    """
    model.eval()
    encoded = per_text(source.reader, batch_size, device, model)
    broken = int((~torch.isfinite(encoded).all(dim=1)).sum())
    if broken:
        raise PermafrostError(
            f"{broken} of {len(encoded)} texts of {source.reader.array} get numbers from the head that are "
            "not finite; lower optim.lr, or check the features with 'permafrost verify'"
        )
    return model.predict(encoded, source.sides)
