"""The optimiser of a model of texts with graphs."""

from collections.abc import Iterable

import torch
from torch import nn

from permafrost.stages.finetune.config import FinetuneOptim


def finetune_optimizer(config: FinetuneOptim, module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a module's trainable parameters."""
    groups = [
        {"params": list(some), "weight_decay": decay} for some, decay in _groups(config, module)
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    return torch.optim.RAdam(groups, lr=config.lr, decoupled_weight_decay=True)


def _groups(config: FinetuneOptim, module: nn.Module) -> Iterable[tuple[list[nn.Parameter], float]]:
    trained = [p for p in module.parameters() if p.requires_grad]
    # Biases and the weights of norms are vectors.
    is_spared = [config.decayed == "matrices" and p.ndim < 2 for p in trained]
    decayed = [p for p, spared in zip(trained, is_spared, strict=True) if not spared]
    others = [p for p, spared in zip(trained, is_spared, strict=True) if spared]
    return [
        (some, decay) for some, decay in ((decayed, config.weight_decay), (others, 0.0)) if some
    ]
