"""Where nodes start from: a linear map of label features, and one of query features for query nodes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.heads.initialise import linear


class InputProjection(nn.Module):
    """GELU(W x + b), with weights of its own for query nodes, whose features come from another model."""

    def __init__(self, d_nodes: int, d_query: int, d_out: int, draw: torch.Generator) -> None:
        super().__init__()
        self.nodes = linear(d_nodes, d_out, draw)
        self.query = linear(d_query, d_out, draw)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "n d"]:
        """The first vectors of all nodes."""
        rows = self.nodes(batch.features)
        return functional.gelu(
            rows.index_copy(0, batch.query_node, self.query(batch.query_features))
        )
