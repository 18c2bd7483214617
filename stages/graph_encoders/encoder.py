"""The base classes of graph encoders: configs that build a module, which gives each node a vector.

Axes: n nodes, e edges, d width of a node's vector; see `GraphBatch`.
"""

from abc import ABC, abstractmethod
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.kinds import Category, Kind


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


class GraphEncoder(Kind, ABC):
    """The field `encoder` of a graph-text model: a kind of graph encoder with its settings."""

    @abstractmethod
    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """Build the module, with weights drawn from `draw` (on the CPU).

        Args:
            d_nodes: width of node features.
            d_query: width of query features.
            n_relations: relations of edges, inverses and those of query nodes included; not self loops.
            draw: draws the weights, and the seed of what is drawn in training.

        Raises:
            InputError: the settings do not fit these widths.
        """


GRAPH_ENCODERS = Category("graph encoder", GraphEncoder, "permafrost.stages.graph_encoders.kinds")
GraphEncoderConfig = Annotated[GraphEncoder, GRAPH_ENCODERS.field()]
"""Any graph encoder, by its `kind`."""
