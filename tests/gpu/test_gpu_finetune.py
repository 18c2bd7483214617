"""Training through a backbone on a GPU: LoRA's gradients, what recomputed blocks draw, and cached keys."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import BackboneFiles, load_backbone
from permafrost.stages.finetune.train import build_module
from permafrost.stages.finetune.trainee import GraphTextTrainee
from tests.gpu.devices import checked_device
from tests.stages.extraction.references import encoded
from tests.stages.finetune.graph_text_fits import WITHOUT_DROPOUT
from tests.stages.finetune.small_lora import filled
from tests.stages.finetune.test_cached_keys import agree
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs

DEVICE = checked_device()
Files = Callable[[str], BackboneFiles]


def gradients(files: BackboneFiles, device: str, dropout: float, **optim: Any) -> Tensor:
    """Of all adapters, after one batch, on the CPU."""
    data = data_of(pairs(), load_backbone(files, "float32", device))
    config = config_of(
        data.corpus,
        {"kind": "gt2vec", **WITHOUT_DROPOUT},
        train={"kind": "lora", "r": 2, "dropout": dropout},
        optim=optim,
    )
    module = build_module(config, data)
    assert module.tuned is not None
    filled(module.tuned)
    trainee = GraphTextTrainee(config, data, module, torch.device(device))
    trainee.model.train()
    trainee.gradients(trainee.batches(1)[0], lambda _: None)
    found = [w.grad for w in module.tuned.weights.values() if w.grad is not None]
    assert len(found) == len(module.tuned.weights)
    return torch.cat([g.flatten().cpu() for g in found])


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_adapters_have_the_gradients_of_the_cpu(tiny_files: Files, family: str) -> None:
    ours = gradients(tiny_files(family), DEVICE, 0.0)
    assert far(ours, gradients(tiny_files(family), "cpu", 0.0)) < 1e-3


def test_blocks_that_are_computed_again_draw_what_they_drew(tiny_files: Files) -> None:
    """On the way back CUDA's work is given out by another thread."""
    files = tiny_files("llama")
    kept = gradients(files, DEVICE, 0.3)
    assert far(gradients(files, DEVICE, 0.3, activations="recomputed"), kept) < 1e-3
    assert far(gradients(files, DEVICE, 0.0), kept) > 1e-2


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_a_token_from_cached_keys_is_that_of_the_whole_pass(tiny_files: Files, family: str) -> None:
    backbone = load_backbone(tiny_files(family), "float32", DEVICE)
    agree(backbone, encoded(backbone))
