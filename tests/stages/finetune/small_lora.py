"""Adapters on tiny models of every family, and their numbers of parameters."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from permafrost.stages.extraction.families import FAMILIES, Family
from permafrost.stages.finetune.tuned import Tuned
from permafrost.stages.finetune.tunings.lora import Lora

COUNTS = {
    # Of rank 2 in three blocks: 6 times (inputs + outputs) of the layers of one block.
    "bert": (1536, 960),
    "distilbert": (1536, 960),
    "gemma2": (1344, 1440),
    "gpt2": (1152, 1920),
    "gpt_neox": (1152, 960),
    "llama": (1344, 1440),
    "mistral": (1344, 1440),
    "modernbert": (1152, 1248),
    "mpnet": (1536, 960),
    "opt": (1536, 960),
    "phi3": (960, 1248),
    "qwen2": (1344, 1440),
    "qwen3": (1632, 1440),
    "roberta": (1536, 960),
    "xlm-roberta": (1536, 960),
}
"""Parameters of adapters on attention and feed-forward layers."""


def drawn(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(tuned: Tuned) -> None:
    """As after some training: no matrix is zero."""
    for number, weight in enumerate(tuned.weights.values()):
        # Drawn on the CPU, wherever the backbone is.
        numbers = 0.2 * torch.randn(weight.shape, generator=drawn(number))
        with torch.no_grad():
            weight.copy_(numbers)


@dataclass
class Built:
    """A network of its true size, without numbers."""

    model: PreTrainedModel
    family: Family


def built(config: PreTrainedConfig, **options: Any) -> Built:
    with torch.device("meta"):
        model = AutoModel.from_config(config, **options)
    return Built(model, FAMILIES[config.model_type])


def n_trained(tuned: Tuned) -> int:
    return sum(p.numel() for p in tuned.parameters())


def n_adapters(config: PreTrainedConfig, **lora: Any) -> int:
    return n_trained(Lora(**lora).attach(built(config), drawn()))
