"""The base classes of graph readouts: configs that build a module, which makes one vector of a graph's nodes.

Axes: g graphs, n nodes, d width of a node's vector; see `GraphBatch`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated

from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import ReadoutModule as ReadoutModule

__getattr__ = late_names(__name__)


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
