"""The kind `gat`: graph attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.heads.graph.conv import Conv

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.graph.convolution import Convolution


class GatConv(Conv):
    """Graph attention, the convolution of the paper's main results."""

    splits_heads: ClassVar[bool] = True

    kind: Literal["gat"] = "gat"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `GraphAttention`."""
        from permafrost.stages.heads.graph.graph_attention import GraphAttention

        return GraphAttention(d_in, hidden, generator, heads)
