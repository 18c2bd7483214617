"""GLOT written with torch-geometric, one sentence at a time, as the independent reference.

Edges by explicit cosine per sentence, `GATConv` for the convolutions, the readout as in the paper.
"""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from stages.heads.glot import GlotPooling
from stages.heads.graph_attention import GraphAttention

with warnings.catch_warnings():
    # torch-geometric 2.8.1 calls the deprecated torch.jit.script when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv


def sentences(tokens: Tensor, offsets: Tensor) -> Iterator[Tensor]:
    """The tokens of each text."""
    return iter(tokens.split(offsets.diff().tolist()))


def edge_index(tokens: Tensor, tau: float) -> Tensor:
    """Pairs (from, to) with a cosine above tau, the diagonal included as the cosine decides."""
    unit = functional.normalize(tokens, dim=1)
    return torch.nonzero((unit @ unit.t()) > tau).t()


def gat_conv(conv: GraphAttention) -> GATConv:
    """torch-geometric's layer with the same weights."""
    d_out, d_in = conv.weight.shape
    layer = GATConv(d_in, d_out, heads=1, edge_dim=1).to(conv.weight.dtype)
    with torch.no_grad():
        layer.lin.weight.copy_(conv.weight)
        layer.att_src.copy_(conv.sends.view(1, 1, -1))
        layer.att_dst.copy_(conv.receives.view(1, 1, -1))
        layer.lin_edge.weight.copy_(conv.edge.view(-1, 1))
        layer.att_edge.copy_(conv.edge_attends.view(1, 1, -1))
        layer.bias.copy_(conv.bias)
    return layer


def convolve(layer: GATConv, tokens: Tensor, edges: Tensor) -> Tensor:
    """The layer on one graph, every edge attribute 1."""
    return layer(tokens, edges, edge_attr=tokens.new_ones(edges.shape[1], 1))


def pool_sentence(
    head: GlotPooling, layers: list[GATConv], tokens: Tensor, tau: float
) -> tuple[Tensor, Tensor]:
    """The vector and the token weights of one sentence."""
    edges = edge_index(tokens, tau)
    hidden = [tokens]
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
    weights = head.readout.second(torch.tanh(head.readout.first(fused))).softmax(dim=0)
    return (weights * fused).sum(dim=0), weights[:, 0]
