"""QA-GNN's readout: attention pooling, in which the text asks, in place of the mean of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.graph_encoders.readout import GraphReadout
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import ReadoutModule


class AttentionReadout(GraphReadout):
    """g = MLP([query node ; attention pooling of the other nodes ; text]) (QA-GNN, released code)."""

    kind: Literal["attention"] = "attention"
    heads: int = Field(default=2, ge=1, le=MAX_WIDTH)
    """Attention heads; the number has to divide the width of a node's vector."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Of the attention, of what it pools, and inside the MLP."""

    def build(self, d_states: int, d_text: int, draw: torch.Generator) -> ReadoutModule:
        """See `AttentionReadoutModule`.

        Raises:
            InputError: the attention heads do not divide the width, or there is no text to ask with.
        """
        from permafrost.stages.graph_encoders.readouts.attention_module import (
            AttentionReadoutModule,
        )

        if d_states % self.heads:
            raise InputError(
                f"the graph encoder's vectors are {d_states} wide and the readout has {self.heads} attention "
                "heads, which share the width; make the width a multiple of heads"
            )
        if d_text == 0:
            raise InputError(
                "readout 'attention' asks with the text, but the model reads the graph alone; use readout "
                "'mean'"
            )
        return AttentionReadoutModule(self, d_states, d_text, draw)
