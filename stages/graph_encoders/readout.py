"""The base classes of graph readouts: configs that build a module, which makes one vector of a graph's nodes.

Axes: g graphs, n nodes, d width of a node's vector; see `GraphBatch`.
"""

from abc import ABC, abstractmethod
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.kinds import Category, Kind


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


class GraphReadout(Kind, ABC):
    """The field `readout` of a graph-text model: a kind of readout with its settings."""

    @abstractmethod
    def build(self, d_states: int, d_text: int, draw: torch.Generator) -> ReadoutModule:
        """Build the module, with weights drawn from `draw` (on the CPU).

        Args:
            d_states: width of the nodes' vectors.
            d_text: width of the text features.
            draw: draws the weights, and the seed of what is drawn in training.

        Raises:
            InputError: the settings do not fit these widths.
        """


GRAPH_READOUTS = Category(
    "graph readout", GraphReadout, "permafrost.stages.graph_encoders.readouts"
)
GraphReadoutConfig = Annotated[GraphReadout, GRAPH_READOUTS.field()]
"""Any graph readout, by its `kind`."""
