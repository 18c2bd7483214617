"""GT2VEC's attention as a torch-geometric `MessagePassing`, edge by edge, with the weights of ours."""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.kinds.relational_attention_module import (
    AttentionLayer,
    RelationalAttentionModule,
)
from permafrost.stages.graph_encoders.perceptron import Perceptron
from permafrost.stages.heads.directed_draws import DirectedDraws

with warnings.catch_warnings():
    # torch-geometric 2.8.1 calls the deprecated torch.jit.script when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import MessagePassing
    from torch_geometric.utils import add_self_loops, degree, softmax


def mlp(ours: Perceptron) -> nn.Sequential:
    """The same in torch's own modules, sharing our weights."""
    layers: list[nn.Module] = [ours.first]
    if ours.norm is not None:
        norm = nn.BatchNorm1d(ours.norm.num_features).to(ours.norm.weight.dtype)
        norm.load_state_dict({k: v.clone() for k, v in ours.norm.state_dict().items()})
        norm.weight, norm.bias = ours.norm.weight, ours.norm.bias
        layers.append(norm)
    return nn.Sequential(*layers, nn.GELU(), nn.Dropout(ours.p), ours.second)


class ReferenceLayer(MessagePassing):
    """One layer on an edge index that has its loops already."""

    def __init__(self, ours: AttentionLayer) -> None:
        super().__init__(aggr="sum", flow="source_to_target")
        self.ours, self.config = ours, ours.config
        self.f_n = mlp(ours.update)
        self.alpha: Tensor | None = None

    def forward(self, x: Tensor, u: Tensor, edge_index: Tensor, r: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=x, u=u, r=r, size=None)
        return self.f_n(out.view(len(x), -1)) + x

    def message(
        self, x_i: Tensor, x_j: Tensor, u_i: Tensor, u_j: Tensor, r: Tensor, edge_index: Tensor
    ) -> Tensor:
        """i is the target of an edge, j its source."""
        config, heads = self.config, self.config.heads
        q = self.ours.query(torch.cat([x_j, u_j], dim=1))
        k = self.ours.key(torch.cat([x_i, u_i, r], dim=1))
        of, its = (x_j, u_j) if config.message == "source" else (x_i, u_i)
        m = self.ours.message(torch.cat([of, its, r], dim=1))
        width = config.hidden if config.scale == "width" else config.hidden // heads
        gamma = (q * k).view(len(q), heads, -1).sum(dim=2) / math.sqrt(width)
        group = edge_index[1 if config.softmax == "incoming" else 0]
        alpha = self.alpha = softmax(gamma, group)
        if config.softmax == "outgoing_times_degree":
            alpha = alpha * degree(group, dtype=alpha.dtype)[group][:, None]
        return (alpha[:, :, None] * m.view(len(m), heads, -1)).flatten(1)


class ReferenceEncoder(nn.Module):
    """All of it; `layers[-1].alpha` has the last attention."""

    def __init__(self, ours: RelationalAttentionModule) -> None:
        super().__init__()
        self.ours = ours
        self.f_r = mlp(ours.codes.perceptron)
        self.layers = nn.ModuleList(ReferenceLayer(layer) for layer in ours.layers)

    def forward(self, batch: GraphBatch) -> Tensor:
        ours, config = self.ours, self.ours.config
        edge_index, _ = add_self_loops(
            torch.stack([batch.source, batch.target]), num_nodes=batch.n_nodes
        )
        loops = batch.relation.new_full((batch.n_nodes,), ours.n_relations)
        relation = torch.cat([batch.relation, loops])
        ends = [batch.node_type[end] for end in edge_index]
        types = ours.codes.types
        if config.codes == "learned":
            read = [ours.codes.relations[relation], types[ends[0]], types[ends[1]]]
        else:
            sizes = (ours.n_relations + 1, 4, 4)
            read = [
                functional.one_hot(one, n).to(types.dtype)
                for one, n in zip((relation, *ends), sizes, strict=True)
            ]
        r = self.f_r(torch.cat(read, dim=1))
        u = types[batch.node_type]
        if config.relevance == "score":
            u = torch.cat([u, self.relevance(batch)], dim=1)
        start = ours.inputs.nodes(batch.features)
        is_query = torch.zeros(batch.n_nodes, dtype=torch.bool)
        is_query[batch.query_node] = True
        start = start.masked_scatter(
            is_query[:, None].expand_as(start), ours.inputs.query(batch.query_features)
        )
        states = functional.gelu(start)
        draw = torch.Generator().manual_seed(ours.draws.seed + 1)
        with DirectedDraws(draw):  # torch's own dropout, with the numbers of our first call
            for layer in self.layers:
                states = layer(states, u, edge_index, r)
        return states

    def relevance(self, batch: GraphBatch) -> Tensor:
        """QA-GNN's code of relevance, graph by graph."""
        assert batch.relevance is not None
        assert self.ours.relevance is not None
        linear, out = self.ours.relevance.linear, []
        for row, graph in enumerate(batch.graph_of_node.tolist()):
            own = batch.relevance[batch.graph_of_node == graph]
            query = batch.relevance[batch.query_node[graph]]
            score = (query - batch.relevance[row]) / ((query - own).abs().mean() + 1e-5)
            waves = [torch.sin(1.1**j * score) for j in range(linear.in_features)]
            out.append(functional.gelu(linear(torch.stack(waves))))
        return torch.stack(out)
