"""Graph-text models on tiny corpora: whole fits, and gradients of one batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.train import build_module, finetune
from permafrost.stages.finetune.trained import Finetuned, FinetuneResult
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.tiny_graphs import (
    ENCODER,
    pairs,
    questions,
    retrieval,
)

Pairs = Callable[[str], Pair]
CPU = torch.device("cpu")


GT2VEC: dict[str, object] = {"kind": "gt2vec"}
WITHOUT_DROPOUT = {
    "encoder": {**ENCODER, "n_layers": 1, "dropout": 0.0},
    "readout": {"kind": "mean", "dropout": 0.0},
}
CORPORA = {"pairs": pairs, "questions": questions, "retrieval": retrieval}


def fit(config: FinetuneConfig, data: FinetuneData) -> FinetuneResult:
    return finetune(config, data, SilentProgress())


def tuned(result: FinetuneResult) -> Finetuned:
    best = result.best
    return Finetuned(
        result.config, result.facts, best.epoch, best.dev_metric, result.state, result.relations
    )


def trainee(config: FinetuneConfig, data: FinetuneData) -> GraphTextTrainee:
    return GraphTextTrainee(config, data, build_module(config, data), CPU)


def gradients(trained: GraphTextTrainee, n: int = 1) -> dict[str, Tensor]:
    trained.model.train()
    trained.optimizer.zero_grad()
    trained.gradients(trained.batches(1)[n - 1], lambda _: None)
    named = trained.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def same_direction(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Equal to rounding, in float32 through a backbone with wide weights (measured: 2e-5)."""
    assert found.keys() == expected.keys()
    a, b = (torch.cat([g[name].flatten() for name in expected]) for g in (found, expected))
    return float((a - b).norm()) <= 2e-4 * float(b.norm())
