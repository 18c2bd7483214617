"""What graph encoders and readouts build.

Axes: g graphs, n nodes, e edges, d width of a node's vector; see `GraphBatch`.
"""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch


class GraphModule(nn.Module, ABC):
    """Gives every node a vector, from its label's features and from the nodes around it.

    A graph's vectors depend neither on the graphs beside it nor on the order of nodes and edges. Random draws
    in training come from generators of its own, whose state is part of the module's.
    """

    d_out: int
    """Width of a node's vector."""

    @abstractmethod
    def forward(self, batch: GraphBatch) -> Float[Tensor, "n d"]:
        """The vectors of all nodes."""

    def attention(self, batch: GraphBatch) -> Float[Tensor, " e_plus_n"] | None:
        """Attention in the last layer, first of every edge, then of every node on itself, the mean over
        attention heads; None if there is none. For drawings: in evaluation mode, without gradient."""
        return None

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


class ReadoutModule(nn.Module, ABC):
    """Makes one vector of each graph."""

    d_out: int
    """Width of a graph's vector."""

    @abstractmethod
    def forward(self, states: Float[Tensor, "n d"], batch: GraphBatch) -> Float[Tensor, "g d_out"]:
        """The vectors of the graphs, from those of their nodes and from the texts' features."""

    def weights(
        self, states: Float[Tensor, "n d"], batch: GraphBatch
    ) -> Float[Tensor, " n"] | None:
        """Share of each node in its graph's vector, summing to 1 per graph; None without such weights."""
        return None
