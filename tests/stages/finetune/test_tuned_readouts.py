"""Every readout of GLOT's tables on a tuned backbone: gradients reach it, and scores follow it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from permafrost.stages.extraction.backbone import BackboneFiles, load_backbone
from permafrost.stages.finetune.tuned_head import TunedHeadTrainee
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig
from permafrost.stages.fit.splits import splits
from permafrost.stages.fit.training import facts_of
from tests.stages.finetune.test_tuned_head import OPTIM, data_of, live

READOUTS: dict[str, dict[str, Any]] = {
    "first": {"kind": "first"},
    "last": {"kind": "last"},
    "mean": {"kind": "mean"},
    "scorer": {"kind": "scorer"},
    "glot": {"kind": "glot", "hidden": 8},
}
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "lora": {"kind": "lora", "r": 2, "alpha": 4, "dropout": 0.0},
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "task", ["classification", pytest.param("similarity", marks=pytest.mark.deep)]
)
@pytest.mark.parametrize("tuning", sorted(TUNINGS))
def test_a_step_trains_the_backbone_through_every_readout(
    tiny_files: Callable[[str], BackboneFiles], tuning: str, task: str
) -> None:
    for name, head in READOUTS.items():
        # The first token of a decoder sees no text.
        family = "llama" if name == "last" else "bert"
        backbone = load_backbone(tiny_files(family), "float32", "cpu")
        reader = live(backbone, "hidden/2")
        loss = "cosine_mse" if task == "similarity" else "cross_entropy"
        config = TunedHeadConfig.model_validate(
            {
                "fit": {"head": head, "layer": "hidden/2", "seed": 3, "loss": {"kind": loss}},
                "train": TUNINGS[tuning],
                "optim": {**OPTIM, "lr": 0.001, "backbone_lr": 0.001},
            }
        )
        data = data_of(reader, task)
        examples = splits(3, "true", data)
        facts = facts_of(data, examples[0])
        trainee = TunedHeadTrainee(config, facts, examples, reader, torch.device("cpu"))
        batch = next(iter(trainee.batches(1)))
        before, _ = trainee.gradients(batch, lambda _: None)
        assert trainee.model.tuned is not None
        reached = [p.grad.norm() for p in trainee.model.tuned.parameters() if p.grad is not None]
        assert max(reached) > 1e-6, name
        with torch.no_grad():
            old, _ = reader.rows(np.arange(4))
            trainee.optimizer.step()
            new, _ = reader.rows(np.arange(4))
            after = float(trainee.loss(batch)[0])
        assert not torch.equal(old, new), name
        assert after < before[0], name
