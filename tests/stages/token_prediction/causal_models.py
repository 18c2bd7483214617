"""Tiny decoders with their language model head, as folders."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.stages.extraction.tiny_models import CONFIGS, byte_tokenizer


def save_causal(model_type: str, folder: Path, **changes: Any) -> Path:
    """Config, weights and tokenizer of a random decoder; `changes` override config fields."""
    config = CONFIGS[model_type]()
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cast(nn.Module, AutoModelForCausalLM.from_config(config))
        for name, parameter in model.named_parameters():
            # Norms and biases start at 1 and 0, which would hide a forgotten one.
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=float("norm" in name or "ln_" in name), std=0.2)
    cast(PreTrainedModel, model).save_pretrained(folder)
    byte_tokenizer(adds_bos=model_type != "gpt2").save_pretrained(folder)
    return folder


def load_causal(folder: Path) -> PreTrainedModel:
    """transformers' own model with eager attention."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return cast(PreTrainedModel, model).eval()
