"""Any convolution of torch-geometric on the token graph, by name.

The graph is that of GLOT's released code: edges (from, to) between tokens with a cosine above tau, with self
loops if tau is below 1. Other inputs that a class may need are set by the head: edge weights and attributes
(1, or the cosine), the index of each token's text, the rows before the first convolution (`x_0`), and MLPs as
networks. The hyperedges of a hypergraph are the neighbourhoods of tokens.
Axes: t tokens of all texts, e edges, d input width, h output width.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from permafrost.stages.heads.graph.conv import Conv
from permafrost.stages.heads.graph.convolution import Convolution
from permafrost.stages.heads.graph.token_graph import COPIED, build_edges
from permafrost.stages.heads.pyg_layers import (
    REFUSED_CONVOLUTIONS,
    Family,
    SeededCalls,
    construction,
    draw_seed,
    inner_layer,
    signature,
    width_of,
)
from permafrost.stages.heads.ragged_sums import owners
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_RELATIONS = "it wants edges of several kinds, and the token graph has one"
_TYPES = "it wants nodes or edges of several types, and the token graph has one of each"

CLASSES = Family(
    module="torch_geometric.nn.conv",
    noun="convolution",
    given=frozenset({"in_channels", "channels", "out_channels", "nn"}),
    filled=frozenset({"edge_dim", "in_edge_channels", "dim"}),
    inner=frozenset({"conv", "phi"}),
    passed_on=frozenset({"aggr", "aggr_kwargs", "decomposed_layers", "flow"}),
    refused={
        **REFUSED_CONVOLUTIONS,
        "RGCNConv": _RELATIONS,
        "FastRGCNConv": _RELATIONS,
        "RGATConv": _RELATIONS,
        "SignedConv": "it wants positive and negative edges, and the token graph has one kind",
        "HGTConv": _TYPES,
        "HEATConv": _TYPES,
        "HeteroConv": _TYPES,
        "HANConv": _TYPES,
        "DNAConv": "it wants the rows of all earlier layers as one more axis; use jumping for that",
        "PANConv": "it wants a compiled library for sparse matrices that is installed apart",
        "SuperGATConv": "it learns from a loss of its own on edges it samples, which training a head has not",
        "WLConv": "it colours a graph in whole numbers, through which no gradient passes",
    },
)

_ATTRIBUTES_NEEDED = ("GINEConv", "NNConv", "GMMConv", "PDNConv")


def _perceptron(d_in: int, d_out: int) -> nn.Sequential:
    """The MLP of GIN, without normalisation."""
    return nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))


_NETWORKS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "GINConv": _perceptron,
    "GINEConv": _perceptron,
    "EdgeConv": lambda d_in, d_out: _perceptron(2 * d_in, d_out),
    "NNConv": lambda d_in, d_out: nn.Linear(1, d_in * d_out),
}
"""The argument `nn` of classes without weights of their own, as a function of input and output width."""


class PygConv(Conv):
    """A convolution of torch-geometric: `{kind: pyg, name: GATv2Conv, args: {heads: 4}}`."""

    keeps_output: ClassVar[bool] = True

    kind: Literal["pyg"] = "pyg"
    name: str
    """A class of `torch_geometric.nn.conv`."""
    args: dict[str, JsonValue] = Field(default={})
    """Its arguments, except the widths, which the head sets: `hidden` is the output width of all attention
    heads together. A class whose output width cannot be set keeps the input width."""
    edges: Literal["one", "cosine"] = "one"
    """Weight, or only attribute, of an edge: 1 as in GLOT, or the cosine of its tokens."""

    @model_validator(mode="after")
    def _known(self) -> "PygConv":
        CLASSES.check(self.name, self.args)
        width = self._edge_width
        if width is not None and self.args.get(width) not in (None, 0, 1):
            raise InputError(
                f"{self.name} has {width} {quoted(self.args[width])} in args, but an edge of the token graph "
                "has one attribute; use 1, or leave it out"
            )
        if self.edges == "cosine" and not (self.takes_weights or self.takes_attributes):
            raise InputError(
                f"{self.name} takes neither weights nor attributes of edges, so edges 'cosine' would "
                "change nothing; leave it at 'one'"
            )
        return self

    @property
    def takes_weights(self) -> bool:
        """Whether edges may have weights."""
        return "edge_weight" in self._inputs

    @property
    def takes_attributes(self) -> bool:
        """Whether edges may have attributes."""
        return self._edge_width is not None or self.name in _ATTRIBUTES_NEEDED

    @property
    def _inputs(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(CLASSES.find(self.name).forward).parameters

    @property
    def _edge_width(self) -> str | None:
        parameters = signature(CLASSES.find(self.name))
        return next((name for name in sorted(CLASSES.filled) if name in parameters), None)

    @property
    def _has_attributes(self) -> bool:
        """Whether edges are given attributes."""
        if self.name in _ATTRIBUTES_NEEDED:
            return True
        width = self._edge_width
        return width is not None and (self.edges == "cosine" or bool(self.args.get(width)))

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `PygConvolution`."""
        return PygConvolution(self, d_in, hidden, generator)

    def graph(
        self,
        tokens: Float[Tensor, "t d"],
        offsets: Int[Tensor, " n_plus_1"],
        tau: float,
        first: Float[Tensor, "t _"],
    ) -> "PygGraph":
        """The graph in torch-geometric's form."""
        return pyg_graph(tokens, offsets, tau, first, self.edges)

    def require(self, tau: float, heads: int) -> None:
        """Refuse `heads`, which the convolution has itself, and negative edge weights."""
        if heads > 1:
            raise ValueError(
                f"heads is {heads} and conv is torch-geometric's {self.name}; leave heads at 1 "
                "and give those of the convolution in conv.args"
            )
        if self.edges == "cosine" and self.takes_weights and tau < 0:
            raise ValueError(
                f"tau is {tau} and {self.name} takes cosines as weights of edges, which it may add up "
                "and take the root of; use a tau of 0 or more, or edges 'one'"
            )

    def require_width(self, d_in: int, hidden: int) -> None:
        """See `build`."""
        PygConvolution(self, d_in, hidden, torch.Generator())

    def inputs(self, rows: Tensor, graph: "PygGraph") -> dict[str, Any]:
        """The inputs that the class takes, by name."""
        weights = graph.cosines if self.edges == "cosine" else None
        values = {
            "x": rows,
            "edge_index": graph.index,
            "hyperedge_index": graph.index,
            "num_edges": len(rows),
            "edge_weight": weights,
            "batch": graph.texts,
            "x_0": graph.first,
        }
        if self._has_attributes:
            ones = rows.new_ones(graph.index.shape[1])
            values["edge_attr"] = (ones if weights is None else weights)[:, None]
        return {name: value for name, value in values.items() if name in self._inputs}

    def make(self, d_in: int, d_out: int) -> nn.Module:
        """Create the layer; call it inside `construction`.

        Raises:
            InputError: it cannot be created from these arguments and widths.
        """
        others: dict[str, Callable[[], Any]] = {}
        if self.name in _NETWORKS:
            others["nn"] = partial(_NETWORKS[self.name], d_in, d_out)
        width = self._edge_width
        if width is not None and self._has_attributes:
            others[width] = lambda: 1
        for argument in CLASSES.inner & self.args.keys():
            value = self.args[argument]
            if isinstance(value, dict):
                name, args = inner_layer(self.name, argument, value)
                others[argument] = partial(PygConv(name=name, args=args).make, d_in, d_in)
        widths = {"in_channels": d_in, "channels": d_in, "out_channels": d_out}
        return CLASSES.make(self.name, self.args, widths, others)


@dataclass(frozen=True)
class PygGraph:
    """The token graphs of a batch in torch-geometric's form."""

    index: Int[Tensor, "2 e"]
    """Source and target of each edge as packed rows, sorted by target."""
    cosines: Float[Tensor, " e"] | None
    """Cosine of the two tokens; None if not needed."""
    texts: Int[Tensor, " t"]
    """The index of each token's text."""
    first: Float[Tensor, "t d"]
    """Rows before the first convolution."""


@torch.no_grad()
def _graph(
    tokens: Tensor, offsets: Tensor, tau: float, cosines: bool
) -> tuple[Tensor, Tensor | None]:
    edges = build_edges(tokens, offsets, tau)
    index = torch.stack([edges.senders, edges.receivers]).long().to(tokens.device)
    if tau >= 1:  # as in torch-geometric's graph, where no cosine is above it
        index = index[:, index[0] != index[1]]
    if not cosines:
        return index, None
    unit = nn.functional.normalize(tokens, dim=1)
    step = max(1, COPIED[tokens.device.type] // tokens.shape[1])
    parts = [torch.linalg.vecdot(unit[some[0]], unit[some[1]]) for some in index.split(step, dim=1)]
    return index, torch.cat(parts)


def pyg_graph(
    tokens: Float[Tensor, "t d"],
    offsets: Int[Tensor, " n_plus_1"],
    tau: float,
    first: Float[Tensor, "t _"],
    edges: Literal["one", "cosine"],
) -> PygGraph:
    """The token graphs of a batch, without gradient as in the paper.

    Args:
        tokens: whose cosines define the graph.
        offsets: where texts start.
        tau: tokens with a cosine strictly above it are connected.
        first: rows before the first convolution.
        edges: their weights; cosines take one number per edge, and a copy of the tokens while computed.
    """
    index, cosines = _graph(tokens, offsets, tau, edges == "cosine")
    return PygGraph(index, cosines, owners(offsets, len(tokens)), first)


class PygConvolution(Convolution):
    """A layer of torch-geometric as a convolution of GLOT; `d_out` is determined by running it once.

    Memory: the layer's own; most keep tensors `[e, h]` for the backward pass.
    """

    def __init__(self, config: PygConv, d_in: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        seed = draw_seed(generator)
        out_channels, self.d_out = _widths(config, d_in, hidden, seed)
        with construction(seed):
            self.layer = SeededCalls(config.make(d_in, out_channels), seed)

    def forward(self, tokens: Float[Tensor, "t d"], graph: PygGraph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        return self.layer(**self.config.inputs(tokens, graph))


def _widths(config: PygConv, d_in: int, hidden: int, seed: int) -> tuple[int, int]:
    """`out_channels` and the output width, which is `hidden` even if a class concatenates attention heads."""
    width = _width(config, d_in, hidden, seed)
    times, rest = divmod(width, hidden)
    has_its_own = "out_channels" in signature(CLASSES.find(config.name))
    if not has_its_own or times < 2 or rest:
        return hidden, width
    if hidden % times:
        raise InputError(
            f"{config.name} concatenates {times} blocks, so hidden, {hidden} here, has to be a multiple "
            f"of {times}"
        )
    return hidden // times, _width(config, d_in, hidden // times, seed)


def _width(config: PygConv, d_in: int, d_out: int, seed: int) -> int:
    """Output width, determined in training mode on two texts of three and two tokens."""
    with construction(seed):
        layer = SeededCalls(config.make(d_in, d_out), seed).train()
    rows = torch.rand(5, d_in, generator=torch.Generator().manual_seed(0))
    graph = pyg_graph(rows, torch.tensor([0, 3, 5]), 0.0, rows, config.edges)
    widths = {"in_channels": d_in, "out_channels": d_out}
    with CLASSES.explaining(config.name, config.args, widths), torch.no_grad():
        out = layer(**config.inputs(rows, graph))
    return width_of(out, len(rows), CLASSES.noun, config.name)
