"""Layers of one kind on top of each other: what the encoders without attention of ours have in common.

Source: table 6 of GT2VEC puts GCN and GIN in the place of its attention and says no more. Ours keep the
residual of equation 1, h <- dropout(GELU(convolution of h)) + h; `residual: none` leaves it out.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws, dropout
from permafrost.stages.graph_encoders.inputs import InputProjection
from permafrost.stages.graph_encoders.module import GraphModule
from permafrost.stages.graph_encoders.stacked_encoder import StackedEncoder


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
