"""The MLP on the query node, the mean of the other nodes, and the text."""

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws
from permafrost.stages.graph_encoders.edges import sum_by
from permafrost.stages.graph_encoders.module import ReadoutModule
from permafrost.stages.graph_encoders.perceptron import Perceptron
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout


class MeanReadoutModule(ReadoutModule):
    """The mean is 0 where there is no node but the query node, and that is left out. Text features may be 0
    wide, for a model that reads the graph alone."""

    def __init__(
        self, config: MeanReadout, d_states: int, d_text: int, draw: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.d_out = config, d_states
        self.perceptron = Perceptron(2 * d_states + d_text, d_states, draw, p=config.dropout)
        self.draws = TrainingDraws(draw)

    def forward(self, states: Float[Tensor, "n d"], batch: GraphBatch) -> Float[Tensor, "g d_out"]:
        """The vectors of the graphs."""
        counted = batch.graph_of_node >= 0
        if self.config.query_node == "left_out":
            counted = counted & ~batch.is_query
        nodes = counted.nonzero()[:, 0]
        graph = batch.graph_of_node[nodes]
        n_nodes = torch.bincount(graph, minlength=batch.n_graphs).clamp_min(1)
        mean = sum_by(states[nodes], graph, batch.n_graphs) / n_nodes[:, None].to(states.dtype)
        parts = [states[batch.query_node], mean, batch.text_features.to(states.dtype)]
        return self.perceptron(torch.cat(parts, dim=1), generator=self.draws())
