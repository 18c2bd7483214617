"""Every convolution of ours, made with numbers of its own."""

import torch

from permafrost.stages.heads.graph.graph_attention import GraphAttention
from permafrost.stages.heads.graph.graph_convolution import GraphConvolution
from permafrost.stages.heads.graph.graph_isomorphism import GraphIsomorphism, PlainGraphIsomorphism
from tests.stages.heads.batches import shift_normalisation

RAGGED = [23, 1, 7, 40, 1, 40, 12]
CONVS = {
    "gat": GraphAttention,
    "gat-3": lambda *args: GraphAttention(*args, heads=3),
    "gcn": GraphConvolution,
    "gin": GraphIsomorphism,
    "gin_plain": PlainGraphIsomorphism,
}


def make_conv(kind, d_in=6, d_out=6, dtype=torch.float64, tau=0.0):
    conv = CONVS[kind](d_in, d_out, torch.Generator().manual_seed(3)).to(dtype)
    if hasattr(conv, "bias"):
        torch.nn.init.normal_(conv.bias, generator=torch.Generator().manual_seed(4))
    if isinstance(conv, GraphIsomorphism):
        shift_normalisation(conv.norm)
        conv.own = 2 if tau < 1 else 1
    return conv
