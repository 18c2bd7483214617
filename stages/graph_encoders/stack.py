"""Layers of one kind on top of each other: what the encoders without attention of ours have in common.

Source: table 6 of GT2VEC puts GCN and GIN in the place of its attention and says no more. Ours keep the
residual of equation 1, h <- dropout(GELU(convolution of h)) + h; `residual: none` leaves it out.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws, dropout
from permafrost.stages.graph_encoders.encoder import GraphEncoder, GraphModule
from permafrost.stages.graph_encoders.inputs import InputProjection


class StackedEncoder(GraphEncoder, ABC):
    """The settings of such an encoder."""

    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of a node's vector."""
    n_layers: int = Field(default=5, ge=1, le=MAX_LAYERS)
    """Number of convolutions."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """After each convolution."""
    residual: Literal["add", "none"] = "add"
    """`add`: each convolution is added to what it read."""


class Stack(GraphModule, ABC):
    """Input projection and convolutions; what a convolution reads besides the nodes is made once a batch."""

    def __init__(
        self, config: StackedEncoder, d_nodes: int, d_query: int, draw: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.d_out = config, config.hidden
        self.inputs = InputProjection(d_nodes, d_query, config.hidden, draw)
        self.layers = nn.ModuleList(self.convolutions(draw))
        self.draws = TrainingDraws(draw)

    @abstractmethod
    def convolutions(self, draw: torch.Generator) -> Iterable[nn.Module]:
        """The layers, which are called with the nodes' vectors and with what `wiring` gives."""

    @abstractmethod
    def wiring(self, batch: GraphBatch) -> Any:
        """What layers read of the graphs of a batch."""

    def forward(self, batch: GraphBatch) -> Float[Tensor, "n d"]:
        """The vectors of all nodes."""
        generator, wiring = self.draws(), self.wiring(batch)
        states: Tensor = self.inputs(batch)
        for layer in self.layers:
            new = dropout(functional.gelu(layer(states, wiring)), self.config.dropout, generator)
            states = states + new if self.config.residual == "add" else new
        return states
