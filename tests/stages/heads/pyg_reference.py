"""GLOT written with torch-geometric as the independent reference.

Edges by explicit cosine per sentence, its layers for the convolutions, the readout as in the paper.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.heads.glot_pooling import GlotPooling
from permafrost.stages.heads.graph.graph_attention import GraphAttention
from permafrost.stages.heads.graph.graph_convolution import GraphConvolution
from permafrost.stages.heads.graph.graph_isomorphism import GraphIsomorphism, PlainGraphIsomorphism

with warnings.catch_warnings():
    # torch-geometric 2.8.1 calls the deprecated torch.jit.script when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import MLP, GATConv, GCNConv, GINConv, global_mean_pool
    from torch_geometric.utils import remove_self_loops

__all__ = [
    "MLP",
    "convolve",
    "edge_index",
    "gat_conv",
    "global_mean_pool",
    "packed",
    "pool_sentence",
    "pool_texts",
    "pyg_layer",
    "sentences",
    "weights",
]


def sentences(tokens: Tensor, offsets: Tensor) -> Iterator[Tensor]:
    """The tokens of each text."""
    return iter(tokens.split(offsets.diff().tolist()))


def edge_index(tokens: Tensor, tau: float) -> Tensor:
    """Pairs (from, to) with a cosine above tau, the diagonal included as the cosine decides."""
    unit = functional.normalize(tokens, dim=1)
    return torch.nonzero((unit @ unit.t()) > tau).t()


def packed(
    texts: Sequence[Tensor],
    tau: float,
    connect: Callable[[Tensor, float], Tensor] = edge_index,
) -> Tensor:
    """The same of several texts end to end."""
    starts = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0).tolist()
    found = [connect(text, tau) + at for text, at in zip(texts, starts[:-1], strict=True)]
    return torch.cat(found, dim=1)


def gat_conv(conv: GraphAttention) -> GATConv:
    """torch-geometric's layer with the same weights."""
    d_out, d_in = conv.weight.shape
    layer = GATConv(d_in, d_out // conv.heads, heads=conv.heads, edge_dim=1).to(conv.weight.dtype)
    with torch.no_grad():
        layer.lin.weight.copy_(conv.weight)
        layer.att_src.copy_(conv.sends.view(1, conv.heads, -1))
        layer.att_dst.copy_(conv.receives.view(1, conv.heads, -1))
        layer.lin_edge.weight.copy_(conv.edge.view(-1, 1))
        layer.att_edge.copy_(conv.edge_attends.view(1, conv.heads, -1))
        layer.bias.copy_(conv.bias)
    return layer


def gcn_conv(conv: GraphConvolution) -> GCNConv:
    """torch-geometric's layer with the same weights."""
    d_out, d_in = conv.weight.shape
    layer = GCNConv(d_in, d_out).to(conv.weight.dtype)
    with torch.no_grad():
        layer.lin.weight.copy_(conv.weight)
        layer.bias.copy_(conv.bias)
    return layer


def gin_conv(conv: GraphIsomorphism) -> GINConv:
    """torch-geometric's layer and perceptron with the same weights and running statistics."""
    d_out, d_in = conv.first.weight.shape
    # A lone token in training: torch-geometric's answer to a batch without variance.
    inner = MLP([d_in, d_out, d_out], norm_kwargs={"allow_single_element": True})
    layer = GINConv(inner).to(conv.first.weight.dtype).train(conv.training)
    (norm,) = inner.norms
    norm.module.load_state_dict(conv.norm.state_dict())
    with torch.no_grad():
        for mine, yours in zip(weights(layer), conv.parameters(), strict=True):
            mine.copy_(yours)
    return layer


def plain_gin_conv(conv: PlainGraphIsomorphism) -> GINConv:
    """torch-geometric's layer with the same weights."""
    d_out, d_in = conv.first.weight.shape
    inner = nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))
    layer = GINConv(inner).to(conv.first.weight.dtype)
    with torch.no_grad():
        for mine, yours in zip(inner.parameters(), conv.parameters(), strict=True):
            mine.copy_(yours)
    return layer


def pyg_layer(conv: nn.Module) -> nn.Module:
    """torch-geometric's layer with the same weights."""
    match conv:
        case GraphAttention():
            return gat_conv(conv)
        case GraphConvolution():
            return gcn_conv(conv)
        case GraphIsomorphism():
            return gin_conv(conv)
        case PlainGraphIsomorphism():
            return plain_gin_conv(conv)
        case _:
            raise AssertionError(type(conv))


def weights(layer: nn.Module) -> list[nn.Parameter]:
    """Its parameters in the order of ours."""
    match layer:
        case GATConv():
            return [
                layer.lin.weight,
                layer.att_src,
                layer.att_dst,
                layer.lin_edge.weight,
                layer.att_edge,
                layer.bias,
            ]
        case GCNConv():
            return [layer.lin.weight, layer.bias]
        case GINConv(nn=MLP()):
            inner = layer.nn
            return [
                *inner.lins[0].parameters(),
                *inner.norms.parameters(),
                *inner.lins[1].parameters(),
            ]
        case _:
            return list(layer.parameters())


def convolve(layer: nn.Module, tokens: Tensor, edges: Tensor) -> Tensor:
    """The layer on a graph: every edge attribute 1, self loops as the cosine decides; none for the plain
    GINConv, which adds the token itself."""
    match layer:
        case GATConv():
            return layer(tokens, edges, edge_attr=tokens.new_ones(edges.shape[1], 1))
        case GINConv(nn=nn.Sequential()):
            return layer(tokens, remove_self_loops(edges)[0])
        case _:
            return layer(tokens, edges)


def pool_sentence(
    head: GlotPooling,
    layers: list[nn.Module],
    tokens: Tensor,
    tau: float,
    connect: Callable[[Tensor, float], Tensor] = edge_index,
) -> tuple[Tensor, Tensor]:
    """The vector and the token weights of one sentence."""
    vectors, weights = pool_texts(head, layers, [tokens], tau, connect)
    return vectors[0], weights


def pool_texts(
    head: GlotPooling,
    layers: list[nn.Module],
    texts: Sequence[Tensor],
    tau: float,
    connect: Callable[[Tensor, float], Tensor] = edge_index,
) -> tuple[Tensor, Tensor]:
    """The vectors of several texts in one batch, and the weights of all their tokens."""
    edges, tokens = packed(texts, tau, connect), torch.cat(list(texts))
    hidden = [tokens if head.projection is None else tokens @ head.projection.weight.t()]
    for layer in layers:
        hidden.append(torch.relu(convolve(layer, hidden[-1], edges)))
    match head.config.jumping:
        case "cat":
            fused = torch.cat(hidden, dim=1)
        case "max":
            fused = torch.stack(hidden[1:]).max(dim=0).values
        case "mean":
            fused = torch.stack(hidden[1:]).mean(dim=0)
        case "none":
            fused = hidden[-1]
    scores = head.readout.second(torch.tanh(head.readout.first(fused)))
    lengths = [len(text) for text in texts]
    weights = [part.softmax(dim=0) for part in scores.split(lengths)]
    vectors = [
        (share * rows).sum(dim=0) for share, rows in zip(weights, fused.split(lengths), strict=True)
    ]
    return torch.stack(vectors), torch.cat(weights)[:, 0]
