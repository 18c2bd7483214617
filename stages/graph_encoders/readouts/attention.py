"""QA-GNN's readout: attention pooling, in which the text asks, in place of the mean of nodes."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws, dropout
from permafrost.stages.graph_encoders.edges import softmax_by, sum_by
from permafrost.stages.graph_encoders.perceptron import Perceptron
from permafrost.stages.graph_encoders.readout import GraphReadout, ReadoutModule
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError


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


class AttentionReadoutModule(ReadoutModule):
    """softmax(q . k / sqrt(width of a head)) over the nodes of a graph but the query node; where there is no
    other, over that one. q is a linear map of the text; k and v are of the nodes."""

    def __init__(
        self, config: AttentionReadout, d_states: int, d_text: int, draw: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.d_out = config, d_states
        self.query = linear(d_text, d_states, draw)
        self.key = linear(d_states, d_states, draw)
        self.value = linear(d_states, d_states, draw)
        self.perceptron = Perceptron(2 * d_states + d_text, d_states, draw, p=config.dropout)
        self.draws = TrainingDraws(draw)

    def forward(self, states: Float[Tensor, "n d"], batch: GraphBatch) -> Float[Tensor, "g d_out"]:
        """The vectors of the graphs."""
        generator, p = self.draws(), self.config.dropout
        alpha = dropout(self._alpha(states, batch), p, generator)
        values = self.value(states)
        weighed = alpha.to(values.dtype)[:, :, None] * self._by_head(values)
        pooled = sum_by(weighed.flatten(1), batch.graph_of_node.clamp_min(0), batch.n_graphs)
        text = batch.text_features.to(states.dtype)
        parts = [states[batch.query_node], dropout(pooled, p, generator), text]
        return self.perceptron(torch.cat(parts, dim=1), generator=generator)

    @torch.no_grad()
    def weights(self, states: Float[Tensor, "n d"], batch: GraphBatch) -> Float[Tensor, " n"]:
        """The attention, the mean over attention heads."""
        return self._alpha(states, batch).mean(dim=1)

    def _alpha(self, states: Tensor, batch: GraphBatch) -> Tensor:
        """`[n, heads]`; 0 for padding."""
        graph = batch.graph_of_node.clamp_min(0)
        is_asked = (batch.graph_of_node >= 0) & ~batch.is_query
        n_asked = torch.zeros_like(batch.query_node).index_add(0, graph, is_asked.long())
        is_asked = is_asked | (batch.is_query & (n_asked[graph] == 0))
        asks = self._by_head(self.query(batch.text_features))[graph]
        scores = torch.linalg.vecdot(asks, self._by_head(self.key(states)))
        scores = scores / math.sqrt(self.d_out // self.config.heads)
        return softmax_by(scores.masked_fill(~is_asked[:, None], -torch.inf), graph, batch.n_graphs)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (self.config.heads, self.d_out // self.config.heads))
