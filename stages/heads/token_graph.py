"""The cosine graph of each text's tokens, in dense blocks of texts of similar length.

Two tokens of a text are neighbours when their cosine is strictly above tau; every token is its own
neighbour. Symmetric, but for pairs whose cosine rounds to either side of tau. Source: GLOT, section
3.2 step 1, as released: cosines of the raw features.

Axes: t tokens of all texts, b texts of a block, l length of a block's longest text.
Memory: 4 bytes for each of the b * l * l pairs of every block, kept for the batch, and blocks of at
most `max(PAIRS, l * l)` pairs in work at a time.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stages.heads.layout import Layout, lay_out

PAIRS = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Token pairs worked on at a time: half a megabyte on a CPU, so that the few tensors in work stay in
the level-2 cache of a core; on a GPU, large launches."""

COPIED = {"cpu": 1 << 17, "cuda": 1 << 28}
"""Numbers copied and normalised at a time: on a CPU few enough to stay in cache and off the page table."""

MASKED = -1e30
"""Added to the score of a pair that is not connected: its softmax weight is exactly 0."""


@dataclass(frozen=True)
class Block:
    """Texts of similar length, padded to the longest.

    Padding repeats the text's own last token, is connected to nothing but itself, and is written
    to a row past the end that callers drop, so it can neither read nor be read.
    """

    penalty: Float[Tensor, "b l l"]
    """[text, i, j]: 0 where token i receives from token j, `MASKED` elsewhere."""
    source: Int[Tensor, " slots"]
    """Row of the packed tokens that each of the b * l slots reads."""
    target: Int[Tensor, " slots"]
    """Row that each slot writes: the same, or t (one past the last) for padding."""


def _penalty(tokens: Tensor, layout: Layout, tau: float) -> Tensor:
    n_texts, longest = layout.shape
    if tau >= 1:  # cosines end at 1, rounding aside
        cosine = tokens.new_zeros(n_texts, longest, longest)
    elif tau < -1:
        cosine = tokens.new_ones(n_texts, longest, longest)
    else:
        cosine = tokens.new_empty(n_texts, longest, longest)
        step = max(1, COPIED[tokens.device.type] // (longest * tokens.shape[1]))
        for text in range(0, n_texts, step):
            rows = tokens.index_select(0, layout.source[text * longest : (text + step) * longest])
            rows /= torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=1e-12)
            unit = rows.view(-1, longest, tokens.shape[1])
            torch.bmm(unit, unit.transpose(1, 2), out=cosine[text : text + step])
        cosine.gt_(tau)
    if layout.padding is not None:
        real = (~layout.padding).to(cosine.dtype)
        cosine.mul_(real[:, :, None]).mul_(real[:, None, :])
    cosine.diagonal(dim1=1, dim2=2).fill_(1.0)
    return cosine.sub_(1.0).mul_(-MASKED)


@torch.no_grad()
def build_blocks(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> list[Block]:
    """The token graphs of a batch; built without gradient, as the paper's are."""
    blocks: list[Block] = []
    for layout in lay_out(offsets, PAIRS[tokens.device.type]):
        penalty = _penalty(tokens, layout, tau)
        blocks.append(Block(penalty, layout.source, layout.target(len(tokens))))
    return blocks


def edges(
    tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"], tau: float
) -> Int[Tensor, "2 e"]:
    """The same graph as pairs of packed rows (from, to), self loops included, sorted."""
    pairs: list[Tensor] = []
    for block in build_blocks(tokens, offsets, tau):
        n_texts, longest = block.penalty.shape[:2]
        target = block.target.view(n_texts, longest)
        text, i, j = torch.nonzero(block.penalty == 0, as_tuple=True)
        pair = torch.stack([target[text, j], target[text, i]])
        pairs.append(pair[:, pair[0] < len(tokens)])
    found = torch.cat(pairs, dim=1)
    return found[:, torch.argsort(found[0] * len(tokens) + found[1])]
