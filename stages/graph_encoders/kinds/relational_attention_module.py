"""The layers of relation-aware attention, by the equations at its settings.

f_m, f_k and f_q being linear, their parts are computed for every node and for every triple (relation, type,
type) that occurs, and added along edges.
Axes: n nodes, k edges and loops, t triples, d width, a attention heads.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.batch import N_NODE_TYPES, GraphBatch
from permafrost.stages.graph_encoders.draws import TrainingDraws
from permafrost.stages.graph_encoders.edges import LoopedEdges, looped, softmax_by
from permafrost.stages.graph_encoders.inputs import InputProjection
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.module import GraphModule
from permafrost.stages.graph_encoders.pairs import Pairs, pair, paired_dots, paired_sums
from permafrost.stages.graph_encoders.perceptron import Perceptron
from permafrost.stages.graph_encoders.relevance import RelevanceCode
from permafrost.stages.heads.initialise import linear


@dataclass(frozen=True)
class _Wiring:
    """Which rows meet along edges, for all layers of a batch."""

    edges: LoopedEdges
    keys: Pairs
    """Of sources with their targets, then of sources with the triples of their edges."""
    messages: Pairs
    """Of targets with what their messages come from, then of targets with the triples of their edges."""
    factor: Tensor | None
    """What alpha is multiplied by."""
    counts: Tensor
    """1 for every node, 0 for padding."""


class RelationalAttentionModule(GraphModule):
    """Input projection, type and relation embeddings, and the layers."""

    def __init__(
        self,
        config: RelationalAttention,
        d_nodes: int,
        d_query: int,
        n_relations: int,
        draw: torch.Generator,
    ) -> None:
        super().__init__()
        self.config, self.n_relations = config, n_relations
        self.d_out = config.hidden
        self.inputs = InputProjection(d_nodes, d_query, config.hidden, draw)
        self.codes = EdgeCodes(config, n_relations, draw)
        self.relevance = None
        d_type = config.hidden
        if config.relevance == "score":
            self.relevance = RelevanceCode(config.hidden, draw)
            d_type += self.relevance.d_out
        self.layers = nn.ModuleList(
            AttentionLayer(config, d_type, draw) for _ in range(config.n_layers)
        )
        self.draws = TrainingDraws(draw)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "n d"]:
        """The vectors of all nodes."""
        return self._run(batch)[0]

    @torch.no_grad()
    def attention(self, batch: GraphBatch) -> Float[Tensor, " e_plus_n"]:
        """alpha of the last layer, before QA-GNN's factor."""
        return self._run(batch)[1].mean(dim=1)

    def _run(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        wiring = self._wiring(batch)
        generator = self.draws()
        types, triples = self.codes(wiring.edges)
        about = types[batch.node_type]
        if self.relevance is not None:
            about = torch.cat([about, self.relevance(batch)], dim=1)
        states, alpha = self.inputs(batch), None
        for layer in self.layers:
            states, alpha = layer(states, about, triples, wiring, generator)
        assert alpha is not None
        return states, alpha

    def _wiring(self, batch: GraphBatch) -> _Wiring:
        edges = looped(batch, self.n_relations)
        n_nodes, n_rows = batch.n_nodes, batch.n_nodes + len(edges.triples)
        of_triple = n_nodes + edges.triple
        heard = edges.source if self.config.message == "source" else edges.target
        keys = torch.cat([edges.target, of_triple])
        factor = None
        if self.config.softmax == "outgoing_times_degree":
            degrees = torch.bincount(edges.source, minlength=n_nodes)
            factor = degrees[edges.source][:, None]
        return _Wiring(
            edges,
            pair(edges.source.repeat(2), keys, n_nodes, n_rows),
            pair(edges.target.repeat(2), torch.cat([heard, of_triple]), n_nodes, n_rows),
            factor,
            (batch.graph_of_node >= 0).long(),
        )


class EdgeCodes(nn.Module):
    """u of every type, and r of every triple (relation, type of source, type of target), for all layers."""

    def __init__(
        self, config: RelationalAttention, n_relations: int, draw: torch.Generator
    ) -> None:
        super().__init__()
        self.n_relations = n_relations
        d = config.hidden
        self.types = nn.Parameter(torch.randn(N_NODE_TYPES, d, generator=draw))
        self.relations = None
        d_read = n_relations + 1 + 2 * N_NODE_TYPES
        if config.codes == "learned":
            # One more for loops.
            self.relations = nn.Parameter(torch.randn(n_relations + 1, d, generator=draw))
            d_read = 3 * d
        self.perceptron = Perceptron(d_read, d, draw, norm=config.norm)

    def forward(self, edges: LoopedEdges) -> tuple[Float[Tensor, "4 d"], Float[Tensor, "t d"]]:
        """u of the types and r of the triples that occur."""
        relation, source, target = edges.triples.unbind(dim=1)
        if self.relations is not None:
            read = [self.relations[relation], self.types[source], self.types[target]]
        else:
            sizes = (self.n_relations + 1, N_NODE_TYPES, N_NODE_TYPES)
            read = [
                functional.one_hot(one, size).to(self.types.dtype)
                for one, size in zip((relation, source, target), sizes, strict=True)
            ]
        return self.types, self.perceptron(torch.cat(read, dim=1), edges.counts)


class AttentionLayer(nn.Module):
    """One layer: f_q, f_k, f_m, f_n."""

    def __init__(self, config: RelationalAttention, d_type: int, draw: torch.Generator) -> None:
        super().__init__()
        d = config.hidden
        self.config = config
        self.query = linear(d + d_type, d, draw)
        self.key = linear(d + d_type + d, d, draw)
        self.message = linear(d + d_type + d, d, draw)
        self.update = Perceptron(d, d, draw, p=config.dropout, norm=config.norm)
        self.scale = 1 / math.sqrt(d if config.scale == "width" else d // config.heads)

    def forward(
        self,
        states: Float[Tensor, "n d"],
        about: Float[Tensor, "n d_type"],
        triples: Float[Tensor, "t d"],
        wiring: _Wiring,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "k a"]]:
        """New vectors, and alpha."""
        rows = torch.cat([states, about], dim=1)
        edges, heads = wiring.edges, self.config.heads
        gamma = paired_dots(
            self.query(rows) * self.scale, _parts(self.key, rows, triples), wiring.keys, heads
        )
        gamma = gamma[: len(edges.source)] + gamma[len(edges.source) :]
        group = edges.target if self.config.softmax == "incoming" else edges.source
        alpha = softmax_by(gamma, group, len(states))
        weights = (alpha if wiring.factor is None else alpha * wiring.factor).repeat(2, 1)
        heard = paired_sums(weights, _parts(self.message, rows, triples), wiring.messages)
        return states + self.update(heard, wiring.counts, generator), alpha


def _parts(layer: nn.Linear, rows: Tensor, triples: Tensor) -> Tensor:
    """What nodes add to W [row ; r] + b, then what triples add: together those of an edge."""
    of_rows, of_triples = layer.weight.split([rows.shape[1], triples.shape[1]], dim=1)
    return torch.cat(
        [functional.linear(rows, of_rows, layer.bias), functional.linear(triples, of_triples)]
    )
