"""The base classes of graph encoders: configs that build a module, which gives each node a vector.

Axes: n nodes, e edges, d width of a node's vector; see `GraphBatch`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated

from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import GraphModule as GraphModule

__getattr__ = late_names(__name__)


class GraphEncoder(Kind, ABC):
    """The field `encoder` of a graph-text model: a kind of graph encoder with its settings."""

    @property
    def reads_relevance(self) -> bool:
        """Whether it asks for the relevance of nodes, so that they must have been scored."""
        return False

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
