"""The code of a node's relevance for the query, after QA-GNN's released code."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.edges import sum_by
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError


class RelevanceCode(nn.Module):
    """GELU(W sin(1.1^j score) + b), with j below half the hidden width.

    A score is counted from that of the graph's query node and in units of the mean distance from it, what is
    less relevant than the query node above 0, as in QA-GNN. There the query node has a score of its own, that
    of the text alone; ours are not scored and have 0, so that distances are the scores with the other sign.
    """

    def __init__(self, hidden: int, draw: torch.Generator) -> None:
        super().__init__()
        self.d_out = max(1, hidden // 2)
        self.linear = linear(self.d_out, self.d_out, draw)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "n d"]:
        """The codes of all nodes.

        Raises:
            InputError: the batch has no relevance scores.
        """
        if batch.relevance is None:
            raise InputError(
                "the graph encoder reads relevance scores (relevance: score), but the graphs have none; "
                "score their nodes as those of training were, or use a model with relevance: none"
            )
        # Padding reads the first graph's, which changes nothing of it.
        graph = batch.graph_of_node.clamp_min(0)
        # In float32 at least: 1.1^100 times a score has to keep its digits.
        scores = batch.relevance.to(torch.promote_types(batch.relevance.dtype, torch.float32))
        distance = (scores[batch.query_node][graph] - scores) * (batch.graph_of_node >= 0)
        both = torch.stack([distance.abs(), (batch.graph_of_node >= 0).to(distance)], dim=1)
        total, n_nodes = sum_by(both, graph, batch.n_graphs).unbind(dim=1)
        score = distance / (total / n_nodes + 1e-5)[graph]
        powers = 1.1 ** torch.arange(self.d_out, device=score.device).to(score)
        waves = (score[:, None] * powers).sin().to(self.linear.weight.dtype)
        return functional.gelu(self.linear(waves))
