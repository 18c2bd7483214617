"""The cosine graph of each text's tokens: in dense blocks of texts of similar length, or as edges.

Two tokens of a text are neighbours if their cosine is strictly above tau; every token is its own neighbour.
The graph is symmetric, except for pairs whose cosine rounds to either side of tau. Source: GLOT, section
3.2 step 1, as released: cosines of the raw features.

Axes: t tokens of all texts, b texts of a block, l length of a block (its longest text's, rounded up).
Memory: at most 4 bytes per pair, b * l * l in every block, kept for the batch in either form, 1 more while
the graph is built; blocks of at most `max(PAIRS, l * l)` pairs are processed at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.heads.graph.edge_list import EdgeList, list_edges
from permafrost.stages.heads.layout import Layout, lay_out

PAIRS = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Token pairs processed at a time: half a megabyte on a CPU, so that the few working tensors stay in a core's
level-2 cache; on a GPU, large launches."""

COPIED = {"cpu": 1 << 17, "cuda": 1 << 28}
"""Numbers copied and normalised at a time: on a CPU few enough to stay in cache and avoid page faults."""

MULTIPLE = 8
"""Block lengths are multiples of this, which gives full SIMD vectors and few different shapes."""

PAIRS_OF_AN_EDGE = 5
"""On a CPU one edge in a list costs as much as this many pairs in a block, measured in a training step."""

MASKED = -1e30
"""Added to the score of a pair that is not connected: its softmax weight is exactly 0."""


@dataclass(frozen=True)
class Block:
    """Texts of similar length, padded to the longest.

    Padding repeats the text's last token, is connected only to itself, and is written to a row past the end
    that callers drop, so it neither reads nor is read.
    """

    penalty: Float[Tensor, "b l l"]
    """[text, i, j]: 0 where token i receives from token j, `MASKED` elsewhere."""
    source: Int[Tensor, " slots"]
    """Row of the packed tokens that each of the b * l slots reads."""
    target: Int[Tensor, " slots"]
    """Row that each slot writes: the same, or t (one past the last) for padding."""


Graph = Sequence[Block] | EdgeList
"""The token graphs of a batch, in either form."""


def _adjacency(tokens: Tensor, layout: Layout, tau: float) -> Tensor:
    """[text, i, j]: whether token i receives from token j; False for padding."""
    n_texts, longest = layout.shape
    real = torch.ones(layout.shape, dtype=torch.bool, device=tokens.device)
    if layout.padding is not None:
        real ^= layout.padding
    marked = real.new_zeros(n_texts, longest, longest)
    if tau < -1:  # cosines are within [-1, 1], up to rounding
        marked = real[:, :, None] & real[:, None, :]
    elif tau < 1:
        step = max(1, COPIED[tokens.device.type] // (longest * tokens.shape[1]))
        for text in range(0, n_texts, step):
            some = slice(text, text + step)
            source = layout.source.view(layout.shape)[some].flatten()
            rows = tokens.index_select(0, source)
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=1e-12)
            # NaN is not above tau.
            rows /= norms.masked_fill_(~real[some].view(-1, 1), torch.nan)
            unit = rows.view(-1, longest, tokens.shape[1])
            # Compared in place first: a comparison that writes booleans takes several times as long.
            marked[some] = torch.bmm(unit, unit.transpose(1, 2)).gt_(tau)
    marked.diagonal(dim1=1, dim2=2).copy_(real)
    return marked


def _adjacencies(tokens: Tensor, offsets: Tensor, tau: float) -> list[tuple[Layout, Tensor]]:
    layouts = lay_out(offsets, PAIRS[tokens.device.type], MULTIPLE)
    return [(layout, _adjacency(tokens, layout, tau)) for layout in layouts]


def _block(layout: Layout, marked: Tensor, tokens: Tensor) -> Block:
    penalty = marked.to(tokens.dtype).sub_(1.0).mul_(-MASKED)
    penalty.diagonal(dim1=1, dim2=2).zero_()  # padding's too
    return Block(penalty, layout.source, layout.target(len(tokens)))


def _prefers_edges(tokens: Tensor, adjacency: list[tuple[Layout, Tensor]]) -> bool:
    if tokens.device.type != "cpu" or tokens.dtype == torch.bfloat16:
        return False
    n_pairs = sum(marked.numel() for _, marked in adjacency)
    n_edges = sum(int(np.count_nonzero(marked.numpy())) for _, marked in adjacency)
    return PAIRS_OF_AN_EDGE * n_edges < n_pairs


@torch.no_grad()
def build_graph(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> Graph:
    """The token graphs of a batch in the cheaper of both forms; without gradient, as in the paper."""
    adjacency = _adjacencies(tokens, offsets, tau)
    if _prefers_edges(tokens, adjacency):
        return list_edges(adjacency, offsets)
    return [_block(layout, marked, tokens) for layout, marked in adjacency]


@torch.no_grad()
def build_blocks(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> list[Block]:
    """The same in blocks, however few edges there are."""
    return [_block(layout, marked, tokens) for layout, marked in _adjacencies(tokens, offsets, tau)]


@torch.no_grad()
def build_edges(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> EdgeList:
    """The same as edges, however many there are; on the CPU."""
    return list_edges(_adjacencies(tokens, offsets, tau), offsets)


def edges(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> Int[Tensor, "2 e"]:
    """The same graph as pairs of packed rows (from, to), self loops included, sorted; on the CPU."""
    graph = build_edges(tokens, offsets, tau)
    senders = graph.senders.index_select(0, graph.order)
    return torch.stack([senders, graph.back_receivers]).long()
