"""What heads and captures give on two kinds of device, and how far apart that may be."""

from collections.abc import Mapping

import torch
from torch import Tensor

from permafrost.stages.heads import (
    AdaPoolHead,
    FirstHead,
    GlotHead,
    HeadConfig,
    LastHead,
    MaxHead,
    MeanHead,
    MlpHead,
    ScorerHead,
)
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.pyg_pool import PygPoolHead

WIDTH = 24
LENGTHS = [7, 1, 40, 3, 90]
TOLERANCE = 2e-5
"""Relative: float32 (eps 1.2e-7), summed in other orders, over a few layers."""
_GIVEN = ("vectors", "weights")
"""What is no gradient."""
HEADS: list[HeadConfig] = [
    FirstHead(),
    LastHead(),
    MeanHead(),
    MaxHead(),
    ScorerHead(hidden=16),
    MlpHead(hidden=16),
    AdaPoolHead(heads=4),
    AdaPoolHead(heads=4, query="first"),
    AdaPoolHead(heads=4, query="last", scale="head"),
    *(
        GlotHead(conv=conv, hidden=16, tau=tau)
        for conv in ("gat", "gcn", "gin", "gin_plain")
        for tau in (0.3, 2)
    ),
    GlotHead(hidden=16, heads=4, tau=0.5, project=12, jumping="max"),
    GlotHead(hidden=16, tau=0.5, conv=PygConv(name="GATv2Conv", edges="cosine")),
    PygPoolHead(name="LSTMAggregation"),
]


def outcome(head: Pooling, tokens: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    """Vectors, token weights, and the gradients of a loss over the vectors, on the CPU."""
    vectors = head(tokens, offsets)
    found = {"vectors": vectors.detach()}
    with torch.no_grad():
        weights = head.token_weights(tokens, offsets)
    if weights is not None:
        found["weights"] = weights
    if any(p.requires_grad for p in head.parameters()):
        directions = torch.linspace(-1, 1, vectors.shape[1], device=vectors.device)
        (vectors * directions).tanh().sum().backward()
        found |= {n: p.grad for n, p in head.named_parameters() if p.grad is not None}
    return {name: value.cpu() for name, value in found.items()}


def differing(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """What of two outcomes is further apart than rounding.

    Vectors and token weights relative to their own largest number, gradients to that of all of them: some are
    zero but for rounding (of a bias before a batch normalisation or a softmax, which take it off again), so
    that their own largest number is rounding as well.
    """
    assert ours.keys() == theirs.keys()
    largest = {name: float(value.abs().max()) for name, value in theirs.items()}
    steepest = max((n for name, n in largest.items() if name not in _GIVEN), default=0.0)
    found: list[str] = []
    for name, value in theirs.items():
        scale = largest[name] if name in _GIVEN else steepest
        difference = float((ours[name].double() - value.double()).abs().max())
        if difference > TOLERANCE * scale:
            found.append(f"{name} by {difference:.1e} of {scale:.1e}")
    return found


def further_off(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    least: float,
) -> list[str]:
    """Captured arrays that are further from the exact numbers than rounding on another device explains.

    How far rounding goes depends on the backbone: that of a tiny one with wide weights in bfloat16 is a tenth
    of its states. So the other device's distance is the measure: thrice that, and a share `least` of the
    largest state, or of the 1 that weights sum to.
    """
    assert ours.keys() == theirs.keys() == exact.keys()
    found: list[str] = []
    for name, numbers in exact.items():
        scale = 1.0 if "attention_rows" in name else max(float(numbers.abs().max()), 1.0)
        mine, other = (
            float((x[name].double() - numbers.double()).abs().max()) / scale for x in (ours, theirs)
        )
        if not mine <= 3 * other + least:
            found.append(f"{name} by {mine:.1e}, the other device by {other:.1e}")
    return found
