"""Initial weights drawn from an explicit generator.

Fits run in parallel threads of one process, so nothing may be drawn from torch's global generator. The
distributions are those of `torch.nn.Linear` and of torch-geometric's `glorot`.
"""

import math

import torch
from torch import Tensor, nn


def linear(d_in: int, d_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with torch's default initialisation: uniform in ±1 / sqrt(d_in)."""
    # Created on the meta device first, which avoids drawing from the global generator.
    layer = nn.Linear(d_in, d_out, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(d_in)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def projection(d_in: int, d_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer without bias, initialised likewise."""
    layer = nn.Linear(d_in, d_out, bias=False, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(d_in)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    return layer


def glorot(*shape: int, fans: int, generator: torch.Generator) -> nn.Parameter:
    """A parameter uniform in ±sqrt(6 / fans), where fans is the sum of fan-in and fan-out."""
    bound = math.sqrt(6 / fans)
    weight: Tensor = nn.init.uniform_(torch.empty(shape), -bound, bound, generator=generator)
    return nn.Parameter(weight)
