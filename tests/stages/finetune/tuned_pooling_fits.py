"""Poolings whose backbone is tuned by a contrastive loss, on tiny pairs: fits, and gradients of a batch."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head import TunedHeadResult, TunedHeadTrainee, finetune_head
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, prepared
from permafrost.stages.fit import FitData
from permafrost.stages.fit.training import facts_of
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import encoded, resolved
from tests.stages.extraction.tiny_models import WORDS

Pairs = Callable[[str], Pair]
N = 20
TEXTS = [
    " ".join([*WORDS[2 + i % 7 : 4 + i % 7 + i % 4], WORDS[2 + (i * 5) % 12], "."])
    for i in range(3 * N)
]
"""Queries, their answers, and a wrong answer for each of them."""
LORA: dict[str, Any] = {
    "kind": "lora",
    "r": 2,
    "alpha": 4,
    "dropout": 0.3,
    "targets": "without_keys",
}
OPTIM = {"lr": 0.01, "backbone_lr": 0.01, "batch_size": 5, "max_epochs": 2, "patience": None}
VA = "values/1-2"
"""Of three blocks: block 2 is the last that is pooled."""


def live(backbone: Backbone, array: str = VA) -> LiveReader:
    return LiveReader(backbone, resolved(backbone, "plain"), encoded(backbone, texts=TEXTS), array)


def data_of(reader: LiveReader) -> FitData:
    # One and two hard negatives in turn, none for the third.
    negatives = [[2 * N + (i + k) % N for k in range((i + 1) % 3)] for i in range(N)]
    examples = pa.table(
        {
            "split": ["train"] * 12 + ["dev"] * 4 + ["test"] * 4,
            "text": pa.array(range(N), pa.int64()),
            "text_pair": pa.array(range(N, 2 * N), pa.int64()),
            "label": pa.nulls(N, pa.float64()),
            "negatives": pa.array(negatives, pa.list_(pa.int64())),
        }
    )
    digests = [f"{i:032x}" for i in range(len(TEXTS))]
    return FitData({reader.array: reader}, examples, (), digests, "unlabelled")


def config(
    layer: str = VA, train: Any = LORA, optim: dict[str, Any] | None = None, **others: Any
) -> TunedHeadConfig:
    loss = {
        "kind": "contrastive",
        "similarity": "cosine",
        "temperature": 0.02,
        "hard_negatives": "add",
    }
    fit = {"head": {"kind": "mean"}, "layer": layer, "seed": 3, "loss": loss, "metric": "mrr"}
    return TunedHeadConfig.model_validate(
        {
            "fit": {**fit, **others},
            "train": train,
            "optim": {**OPTIM, **(optim or {})},
            "n_negatives": 1,
        }
    )


def tuned(backbone: Backbone, wanted: TunedHeadConfig, **others: Any) -> TunedHeadResult:
    reader = live(backbone, wanted.fit.layer)
    return finetune_head(wanted, data_of(reader), reader, SilentProgress(), **others)


def trainee_of(backbone: Backbone, wanted: TunedHeadConfig) -> TunedHeadTrainee:
    reader = live(backbone, wanted.fit.layer)
    data = data_of(reader)
    whole, examples = prepared(wanted, data)
    facts = facts_of(data, examples[0])
    trainee = TunedHeadTrainee(whole, facts, examples, reader, torch.device("cpu"))
    trainee.model.train()
    return trainee


def gradients(backbone: Backbone, wanted: TunedHeadConfig) -> dict[str, Tensor]:
    """Of the first batch, by adapters that are not zero."""
    trainee = trainee_of(backbone, wanted)
    assert trainee.model.tuned is not None
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in trainee.model.tuned.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    trainee.gradients(next(iter(trainee.batches(1))), lambda _: None)
    named = trainee.model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


SILENT = {**LORA, "dropout": 0.0}
