"""Attention pooling of a graph's nodes, in which the text asks."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws, dropout
from permafrost.stages.graph_encoders.edges import softmax_by, sum_by
from permafrost.stages.graph_encoders.module import ReadoutModule
from permafrost.stages.graph_encoders.perceptron import Perceptron
from permafrost.stages.graph_encoders.readouts.attention import AttentionReadout
from permafrost.stages.heads.initialise import linear


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
