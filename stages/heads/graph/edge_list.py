"""Token graphs as edge lists, for sparse graphs.

Axes: t tokens of all texts, e edges, n texts, b texts of a block, l length of its longest, h width.
Memory: 16 bytes per edge and 8 per token, kept for the batch; twice that while the graph is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int32
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from permafrost.stages.heads.layout import Layout


@dataclass(frozen=True)
class EdgeList:
    """The tokens that each token receives from, itself included, as rows of the packed tokens."""

    starts: Int32[Tensor, " t_plus_1"]
    """Token i receives along the edges `starts[i]:starts[i + 1]`."""
    senders: Int32[Tensor, " e"]
    receivers: Int32[Tensor, " e"]
    order: Int32[Tensor, " e"]
    """Indices of the edges above, sorted by sender."""
    back_starts: Int32[Tensor, " t_plus_1"]
    """Token j sends along the edges `order[back_starts[j]:back_starts[j + 1]]`."""
    back_receivers: Int32[Tensor, " e"]
    """`receivers` in that order."""


def list_edges(
    adjacency: Sequence[tuple[Layout, Tensor]], offsets: Int[Tensor, " n_plus_1"]
) -> EdgeList:
    """The edges of a batch, on the CPU.

    Args:
        adjacency: blocks, each with a `[b, l, l]` bool, [text, i, j]: whether token i receives from j.
        offsets: where texts start.
    """
    texts = offsets.cpu().numpy()
    n_tokens = int(texts[-1])
    degrees = np.zeros(n_tokens + 1, np.int64)  # the last one is for padding
    blocks: list[tuple[Layout, np.ndarray, np.ndarray]] = []
    for layout, marked in adjacency:
        of_slots = marked.sum(dim=2).cpu().numpy()
        degrees[layout.target(n_tokens).cpu().numpy()] = of_slots.ravel()
        blocks.append((layout, of_slots, np.flatnonzero(marked.cpu().numpy())))
    starts = np.concatenate([[0], degrees[:-1].cumsum()])
    senders = np.empty(starts[-1], np.int32)
    for layout, of_slots, pairs in blocks:
        n_texts, longest = of_slots.shape
        owners = layout.texts.cpu().numpy()
        # Slot s is a row of l pairs, of which the first, s * l, is with the text's first token.
        firsts = np.repeat(texts[owners], longest) - np.arange(n_texts * longest) * longest
        pairs += np.repeat(firsts, of_slots.ravel())
        ends = of_slots.sum(axis=1).cumsum()
        for owner, of_text in zip(owners, np.split(pairs, ends[:-1]), strict=True):
            senders[starts[texts[owner]] : starts[texts[owner + 1]]] = of_text
    numbers = np.arange(len(senders), dtype=np.int32)
    graph = (numbers, senders, starts.astype(np.int32))
    back = sparse.csr_array(graph, shape=(n_tokens, n_tokens)).tocsc()
    receivers = np.repeat(np.arange(n_tokens, dtype=np.int32), degrees[:-1])
    arrays = (graph[2], senders, receivers, back.data, back.indptr, back.indices)
    return EdgeList(*(torch.from_numpy(array) for array in arrays))


def gather(
    rows: Float[Tensor, "t h"],
    starts: Int32[Tensor, " t_plus_1"],
    numbers: Int32[Tensor, " e"],
    weights: Float[Tensor, " e"] | None = None,
) -> Float[Tensor, "t h"]:
    """For every token the weighted sum of rows over its edges; edge k has the row `numbers[k]`."""
    # An embedding bag reads the rows and writes the sums; any other way creates a tensor [e, h].
    return functional.embedding_bag(
        numbers,
        rows.detach(),
        starts,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )
