"""A head in training: its model, the loss of a batch, and its predictions on dev."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.metrics import evaluate
from permafrost.stages.fit.models import TaskFacts, TaskModel, build_model
from permafrost.stages.fit.optim import OptimConfig, make_optimizer, rate
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.fit.sources import Source, per_text, to_tensors
from permafrost.stages.fit.trainer import Plan, Trainee
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.readers import Batch


class HeadTrainee(Trainee[TaskModel, Batch]):
    """A head with the layers its task adds; the same seed gives the same initial weights on every device.

    Args:
        config: of the fit, with its limits filled in.
        facts: what the model needs to know about the corpus.
        train: training examples.
        dev: examples it is scored on; None if it never is.
        device: where to compute.

    Raises:
        InputError: there is nothing to train.
    """

    def __init__(
        self,
        config: FitConfig,
        facts: TaskFacts,
        train: Source,
        dev: Source | None,
        device: torch.device,
    ) -> None:
        self.config, self.train, self._dev, self.device = config, train, dev, device
        self.model = build_model(config, facts, train.reader.width).to(device)
        if not any(p.requires_grad for p in self.model.parameters()):
            # For heads without parameters, `require_fitting` has reported this.
            raise InputError(
                f"head {config.head.kind} has no parameters with these settings and loss {config.loss.kind} "
                "adds none, so there is nothing to train; use another head"
            )
        self.optimizer = make_optimizer(config.optim, self.model.parameters())

    @property
    def plan(self) -> Plan:
        """The config's training plan for the number of train examples."""
        return plan_of(self.config.optim, len(self.train.labels))

    def batches(self, epoch: int) -> Any:
        """Indices of examples, with the rows of their texts."""
        return self.train.shuffled(self.config.optim.batch_size, self.config.seed, epoch)

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """The loss of the task.

        Raises:
            InputError: a layer of a library cannot be computed in the training precision.
        """
        picked, rows = batch
        precision = self.config.optim.precision
        try:
            encoded = encode(self.model, precision, *to_tensors(rows, self.device))
        except RuntimeError as error:
            if precision == "float32" or "dtype" not in str(error):
                raise
            raise InputError(
                f"the head {self.config.head.model_dump_json()} cannot be trained in optim.precision "
                f"{precision}, as a layer of it makes numbers in float32 ({error}); use precision: float32"
            ) from error
        labels = torch.from_numpy(self.train.labels[picked]).to(self.device)
        return self.model.loss(encoded, labels), len(picked)

    def dev(self) -> tuple[float]:
        """The config's metric on dev."""
        assert self._dev is not None, "a trainee without dev is never scored"
        answers = predict(self.model, self._dev, self.config.optim.batch_size, self.device)
        return (evaluate(self.config.metric, self._dev.labels, answers.values),)

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the fit and its learning rate."""
        return PermafrostError(
            f"the loss is {value} {what} of the fit "
            f"{self.config.model_dump_json()} with optim.lr {self.config.optim.lr}; lower "
            "optim.lr, or check the features with 'permafrost verify'"
        )


def plan_of(optim: OptimConfig, n_examples: int) -> Plan:
    """The training plan of a config, for this number of train examples."""
    limits = optim.limits(n_examples)
    per_epoch = -(-n_examples // optim.batch_size)
    n_steps = per_epoch * limits.n_epochs
    return Plan(
        limits.n_epochs,
        per_epoch,
        limits.patience,
        max_grad_norm=optim.max_grad_norm,
        rate=lambda step: rate(optim, step, n_steps),
    )


def encode(
    model: TaskModel, precision: str, tokens: Tensor, offsets: Tensor
) -> Float[Tensor, "n e"]:
    """Encodings of texts in float32, computed in the training precision."""
    if precision == "float32":
        return model(tokens, offsets)
    # Casts instead of autocast, which does not apply inside the heads' hand-written backward passes.
    # Gradients arrive at the float32 parameters; batch normalisation keeps its own in float32.
    kept = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()}
    low = {n: p if id(p) in kept else p.bfloat16() for n, p in model.named_parameters()}
    # As torch-geometric's GINConv keeps its epsilon. Running statistics are written to, and stay.
    low |= {
        n: b.bfloat16()
        for n, b in model.named_buffers()
        if b.is_floating_point() and not n.rpartition(".")[2].startswith("running_")
    }
    encoded: Tensor = functional_call(model, low, (tokens.bfloat16(), offsets))
    return encoded.float()


def predict(model: TaskModel, source: Source, batch_size: int, device: torch.device) -> Predictions:
    """Predictions for every example of a split; each distinct text of pairs is encoded once.

    Raises:
        PermafrostError: an encoding or a probability is not finite.
    """
    model.eval()
    encoded = per_text(source.reader, batch_size, device, model)
    broken = int((~torch.isfinite(encoded).all(dim=1)).sum())
    if broken:
        raise PermafrostError(
            f"{broken} of {len(encoded)} texts of {source.reader.array} get numbers from the head that are "
            "not finite; lower optim.lr, or check the features with 'permafrost verify'"
        )
    found = model.predict(encoded, source.sides)
    if found.probabilities is not None and not np.isfinite(found.probabilities).all():
        raise PermafrostError(
            f"the classifier gives numbers that are not finite to examples of {source.reader.array}; lower "
            "optim.lr, and train again"
        )
    return found
