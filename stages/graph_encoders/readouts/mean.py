"""GT2VEC's readout: an MLP on the query node, the mean of the other nodes, and the text (section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.graph_encoders.readout import GraphReadout

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import ReadoutModule


class MeanReadout(GraphReadout):
    """g = MLP([query node ; mean of nodes ; text]), as wide as a node's vector."""

    kind: Literal["mean"] = "mean"
    query_node: Literal["left_out", "in"] = "left_out"
    """Whether the query node, which stands apart already, is one of the nodes of the mean."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Inside the MLP."""

    def build(self, d_states: int, d_text: int, draw: torch.Generator) -> ReadoutModule:
        """See `MeanReadoutModule`."""
        from permafrost.stages.graph_encoders.readouts.mean_module import MeanReadoutModule

        return MeanReadoutModule(self, d_states, d_text, draw)
