"""How a recipe alters the forward pass; what is done with it is the forward pass's business."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rewiring:
    """States copied to placeholders before some blocks: token prepending, hierarchical or not."""

    start: int
    """Copies happen before the blocks with 0-based index start..stop-1."""
    stop: int
    """One past the last of them; equal to `start` for no copies at all."""
    placeholder: Literal["mean", "noise"]
    """A placeholder's embedding: the mean of the input embedding matrix, which is what transformers' own
    initialisation of an added token amounts to, or N(0, 1), which is what the released code of token
    prepending writes over it."""
    seed: int
    """Of the noise."""


@dataclass(frozen=True)
class Intervention:
    """The last token's input of one block's output projection is replaced: contrastive prompting."""

    block: int
    """1-based."""
    mode: Literal["scaled", "norm"]
    """z becomes `coefficient * (z - z_auxiliary)`, or that difference with the norm that z had."""
    coefficient: float
    """Of `scaled`."""
