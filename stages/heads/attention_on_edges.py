"""Attention over the neighbours of each token along a list of edges, and its gradient.

Axes: t tokens of all texts, e edges, h width.
Memory: a few tensors `[e]`, and `[t, h]`; the gradient makes the attention again instead of keeping it.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from permafrost.stages.heads.edge_list import EdgeList, gather
from permafrost.stages.heads.ragged_sums import softmax


def _attention(
    edges: EdgeList, sent: Tensor, received: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """Scores of the edges before the LeakyReLU, and the softmax over the edges of each receiver."""
    scores = sent.index_select(0, edges.senders).add_(received.index_select(0, edges.receivers))
    return scores, softmax(functional.leaky_relu(scores, slope), edges.starts, edges.receivers)


def attend(
    edges: EdgeList,
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
) -> Float[Tensor, "t h"]:
    """out_i = sum_j softmax_j(LeakyReLU(sent_j + received_i)) rows_j over the neighbours j of i."""
    _, attention = _attention(edges, sent, received, slope)
    return gather(rows, edges.starts, edges.senders, attention)


def gradients(
    edges: EdgeList,
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
    grad: Float[Tensor, "t h"],
    correction: Float[Tensor, " t"],
) -> tuple[Float[Tensor, "t h"], Float[Tensor, " t"], Float[Tensor, " t"]]:
    """Gradients of rows, sent and received; `correction` is grad_i.out_i.

    That of a score is p_ij (grad_i.rows_j - correction_i), p the attention times the slope of the
    LeakyReLU. Its sums over j and over i follow from sums of rows and of grads, so that there is no product
    for each edge.
    """
    scores, attention = _attention(edges, sent, received, slope)
    pulled = torch.where(scores > 0, attention, slope * attention)
    to_received = torch.linalg.vecdot(grad, gather(rows, edges.starts, edges.senders, pulled))
    to_received -= correction * torch.segment_reduce(pulled, "sum", offsets=edges.starts)
    attention, pulled = (x.index_select(0, edges.order) for x in (attention, pulled))
    starts, receivers = edges.back_starts, edges.back_receivers
    to_rows = gather(grad, starts, receivers, attention)
    to_sent = torch.linalg.vecdot(rows, gather(grad, starts, receivers, pulled))
    pulled *= correction.index_select(0, receivers)
    to_sent -= torch.segment_reduce(pulled, "sum", offsets=starts)
    return to_rows, to_sent, to_received
