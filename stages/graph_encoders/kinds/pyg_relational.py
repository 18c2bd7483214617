"""Any relational convolution of torch-geometric, by name: RGCNConv, RGATConv, FiLMConv, HGTConv and others.

A class that reads the relation of an edge as a number is given it; one that reads attributes of an edge is
given a learned vector of its relation. Nodes are of one type for HGTConv, whose types of edges are the
relations; HEATConv is given the types of nodes. Inverse relations are relations of their own.
Axes: n nodes, e edges, d width.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import N_NODE_TYPES, GraphBatch
from permafrost.stages.graph_encoders.module import GraphModule
from permafrost.stages.graph_encoders.stack import Stack
from permafrost.stages.graph_encoders.stacked_encoder import StackedEncoder
from permafrost.stages.heads.pyg_layers import (
    REFUSED_CONVOLUTIONS,
    Family,
    SeededCalls,
    construction,
    draw_seed,
    width_of,
)
from permafrost.storage.errors import InputError

_BATCH = "a graph's vectors would depend on the graphs beside it"

CLASSES = Family(
    module="torch_geometric.nn.conv",
    noun="convolution",
    given=frozenset(
        {"in_channels", "channels", "out_channels", "nn", "metadata"}
        | {"num_relations", "num_node_types", "num_edge_types", "edge_dim"}
    ),
    filled=frozenset({"dim", "edge_type_emb_dim", "edge_attr_emb_dim"}),
    inner=frozenset(),
    passed_on=frozenset({"aggr", "aggr_kwargs", "decomposed_layers"}),
    refused={
        **REFUSED_CONVOLUTIONS,
        "GMMConv": "it wants coordinates of edges, and relations lie too far from its Gaussians to be heard",
        "HypergraphConv": "it wants edges of more than two nodes",
        "SignedConv": "it wants positive and negative edges; relations are neither",
        "HeteroConv": "it only holds other convolutions, one for each relation; name one such as RGCNConv",
        "HANConv": f"its attention over relations is of all nodes of a batch, so {_BATCH}",
        "GPSConv": "it holds another convolution and lets every node attend to every other in a matrix",
    },
    setter="the graph encoder",
)


def _perceptron(d: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))


_NETWORKS: Mapping[str, Callable[[int], nn.Module]] = {
    "GINEConv": _perceptron,
    "NNConv": lambda d: nn.Linear(d, d * d),
}
"""The argument `nn` of classes without weights of their own, as a function of the width."""


class PygRelational(StackedEncoder):
    """A relational convolution of torch-geometric: `{kind: pyg_relational, name: RGCNConv}`."""

    kind: Literal["pyg_relational"] = "pyg_relational"
    name: str
    """A class of `torch_geometric.nn.conv` that reads relations or attributes of edges."""
    args: dict[str, JsonValue] = Field(default={})
    """Its arguments, except the widths and the number of relations, which are set for it: `hidden` is the
    output width of all attention heads together."""

    @model_validator(mode="after")
    def _known(self) -> "PygRelational":
        CLASSES.find(self.name)
        if not (self.reads_relations or self.reads_attributes):
            raise InputError(
                f"{self.name} reads neither relations nor attributes of edges, so it would ignore the "
                "relations of a graph; use a class that does, such as RGCNConv, or the encoder gcn or gin"
            )
        CLASSES.check(self.name, self.args)
        own = {"edge_dim", "in_edge_channels"} | ({"dim"} if self.name == "CGConv" else set())
        for argument in sorted(self.args.keys() & (own | CLASSES.given)):
            raise InputError(
                f"{self.name} gets its argument {argument} from the graph encoder, so args may not set it"
            )
        if self.args.get("is_sorted"):
            raise InputError(
                f"{self.name} with is_sorted expects edges sorted by relation, and those of a graph are not; "
                "leave is_sorted out"
            )
        return self

    @property
    def reads_relations(self) -> bool:
        """Whether it is given the relations of edges themselves."""
        return "edge_type" in self._inputs or self.reads_edges_apart

    @property
    def reads_attributes(self) -> bool:
        """Whether it is given a learned vector for each edge."""
        return self.name == "HEATConv" or ("edge_attr" in self._inputs and not self.reads_relations)

    @property
    def reads_edges_apart(self) -> bool:
        """Whether it is given the edges of every relation in a tensor of their own."""
        return "edge_index_dict" in self._inputs

    @property
    def _inputs(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(CLASSES.find(self.name).forward).parameters

    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """See `PygStack`."""
        return PygStack(self, d_nodes, d_query, n_relations, draw)

    def make(self, out_channels: int, n_relations: int) -> nn.Module:
        """Create a layer; call it inside `construction`.

        Raises:
            InputError: it cannot be created from these arguments and widths.
        """
        d = self.hidden
        widths = {"in_channels": d, "channels": d, "out_channels": out_channels, "edge_dim": d}
        widths |= {"num_relations": n_relations, "num_edge_types": n_relations}
        widths |= {"num_node_types": N_NODE_TYPES, "edge_type_emb_dim": d, "edge_attr_emb_dim": d}
        others: dict[str, Callable[[], Any]] = {"num_relations": lambda: n_relations}
        others["metadata"] = lambda: (["node"], [_edge_type(r) for r in range(n_relations)])
        if self.name in _NETWORKS:
            others["nn"] = partial(_NETWORKS[self.name], d)
        if self.reads_attributes:
            others |= {"edge_dim": lambda: d, "in_edge_channels": lambda: d}
        if self.name == "CGConv":  # where it is the width of an edge's attributes
            others["dim"] = lambda: d
        layer = CLASSES.make(self.name, self.args, widths, others)
        if self.name == "RGATConv":
            # torch-geometric 2.8.1 leaves it as memory happens to be: it drops the tensor it fills for it.
            nn.init.constant_(cast(Tensor, layer.l2), 1 / cast(int, layer.out_channels))
        return layer

    def convolved(self, layer: nn.Module, states: Tensor, graphs: "PygGraphs") -> Any:
        """What a layer gives for the nodes."""
        values = {
            "x": states,
            "edge_index": graphs.index,
            "edge_type": graphs.relation,
            "node_type": graphs.node_type,
            "edge_attr": graphs.attributes,
        }
        if self.reads_edges_apart:
            values = {"x_dict": {"node": states}, "edge_index_dict": graphs.by_relation}
        wanted = {k: v for k, v in values.items() if k in self._inputs and v is not None}
        out = layer(**wanted)
        return out["node"] if isinstance(out, dict) else out


def _edge_type(relation: int) -> tuple[str, str, str]:
    return "node", str(relation), "node"


@dataclass(frozen=True)
class PygGraphs:
    """The graphs of a batch in torch-geometric's form."""

    index: Int[Tensor, "2 e"]
    relation: Int[Tensor, " e"]
    node_type: Int[Tensor, " n"]
    attributes: Float[Tensor, "e d"] | None
    """Vectors of the edges' relations; None if the class does not read them."""
    by_relation: Mapping[tuple[str, str, str], Int[Tensor, "2 _"]]
    """The edges of every relation, for a class that wants them apart; else empty."""


class PygStack(Stack):
    """Layers of torch-geometric.

    Memory: the layers' own; most keep tensors `[e, hidden]` for the backward pass.
    """

    config: PygRelational

    def __init__(
        self,
        config: PygRelational,
        d_nodes: int,
        d_query: int,
        n_relations: int,
        draw: torch.Generator,
    ) -> None:
        self.n_relations = n_relations
        super().__init__(config, d_nodes, d_query, draw)
        self.relations = None
        if config.reads_attributes:
            self.relations = nn.Parameter(torch.randn(n_relations, config.hidden, generator=draw))

    def convolutions(self, draw: torch.Generator) -> Iterable[nn.Module]:
        """See `PygLayer`."""
        out_channels = _out_channels(self.config, self.n_relations)
        for _ in range(self.config.n_layers):
            yield PygLayer(self.config, out_channels, self.n_relations, draw_seed(draw))

    def wiring(self, batch: GraphBatch) -> PygGraphs:
        """The graphs as they are, without loops."""
        index = torch.stack([batch.source, batch.target])
        types = batch.node_type.long()
        graphs = PygGraphs(index, batch.relation, types, None, {})
        if self.relations is not None:
            graphs = replace(graphs, attributes=self.relations[batch.relation])
        if self.config.reads_edges_apart:
            parts = {r: index[:, batch.relation == r] for r in range(self.n_relations)}
            graphs = replace(graphs, by_relation={_edge_type(r): p for r, p in parts.items()})
        return graphs


class PygLayer(nn.Module):
    """A layer of torch-geometric whose draws are ours."""

    def __init__(
        self, config: PygRelational, out_channels: int, n_relations: int, seed: int
    ) -> None:
        super().__init__()
        self.config = config
        with construction(seed):
            self.layer = SeededCalls(config.make(out_channels, n_relations), seed)

    def forward(self, states: Float[Tensor, "n d"], graphs: PygGraphs) -> Float[Tensor, "n d"]:
        """New vectors, before any activation."""
        return self.config.convolved(self.layer, states, graphs)


def _out_channels(config: PygRelational, n_relations: int) -> int:
    """The `out_channels` for which a layer's output is `hidden` wide.

    Raises:
        InputError: there is none, or the layer does not run.
    """
    width = _width(config, config.hidden, n_relations)
    times, rest = divmod(width, config.hidden)
    if rest == 0 and times > 1 and config.hidden % times == 0:
        part = config.hidden // times
        if _width(config, part, n_relations) == config.hidden:
            return part
    if width == config.hidden:
        return width
    raise InputError(
        f"{config.name} gives vectors {width} wide where hidden, {config.hidden} here, is wanted; set args "
        "or hidden so that its attention heads share the width"
    )


def _width(config: PygRelational, out_channels: int, n_relations: int) -> int:
    """Output width, determined in training mode on a path of five nodes."""
    layer = PygLayer(config, out_channels, n_relations, 0).train()
    path = torch.arange(4)
    rows = torch.rand(5, config.hidden, generator=torch.Generator().manual_seed(0))
    relation = torch.zeros(4, dtype=torch.int64)
    attributes = rows[:4] if config.reads_attributes else None
    index = torch.stack([path, path + 1])
    none = index[:, :0]
    by_relation = {_edge_type(r): index if r == 0 else none for r in range(n_relations)}
    types = torch.zeros(5, dtype=torch.int64)
    graphs = PygGraphs(index, relation, types, attributes, by_relation)
    widths = {"in_channels": config.hidden, "out_channels": out_channels}
    widths["num_relations"] = n_relations
    with CLASSES.explaining(config.name, config.args, widths), torch.no_grad():
        out = config.convolved(layer.layer, rows, graphs)
    return width_of(out, len(rows), CLASSES.noun, config.name)
