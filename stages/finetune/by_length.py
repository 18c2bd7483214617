"""A batch of texts through the backbone in several passes, each of texts of similar length: little is padded.

Texts do not see each other in the backbone, so the result is that of one pass, to rounding. Axes: B texts, D
width of the states, E width of the embeddings.

In half precision on a CPU, oneDNN compiles a matrix product for every number of tokens that it has not seen
lately. What it compiles fills the heap with pieces, in which memory is found ever more slowly. So passes are
padded on to a multiple of some tokens there, of which few come up.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.token_place import ReadAt, TokenPlace

PASS_TOKENS = {"cpu": 32, "cuda": 4096}
"""Tokens of padding that one more pass has to save, by device: what it costs to start one."""


COMPILED_TOKENS = 64
"""Of what the tokens of a pass are a multiple where products are compiled for their number."""


@dataclass(frozen=True)
class Division:
    """Texts in passes."""

    order: NDArray[np.int64]
    """The texts by length."""
    bounds: NDArray[np.int64]
    """Where passes begin among them, with the end."""
    widths: NDArray[np.int64]
    """To how many tokens the texts of each pass are padded."""


def read_by_length(
    backbone: Backbone,
    encoded: Encoded,
    recipe: Recipe,
    read: ReadAt,
    tokens: Float[Tensor, "b e"] | None = None,
    place: TokenPlace = "first",
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Float[Tensor, "b d"]:
    """As `read_states`, in as many passes as save more padding than they cost; `around` is entered for each
    of them."""
    lengths = encoded.token_ids.lengths + (tokens is not None)
    found = divided(backbone, lengths)
    states: list[Tensor] = []
    for (begin, stop), width in zip(pairwise(found.bounds), found.widths.tolist(), strict=True):
        rows = found.order[begin:stop]
        own = None if tokens is None else tokens[torch.from_numpy(rows).to(tokens.device)]
        with around():
            z = read_states(backbone, encoded.take(rows), recipe, read, own, place, width)
        states.append(z)
    back = torch.from_numpy(np.argsort(found.order)).to(backbone.device)
    return torch.cat(states)[back]


def divided(backbone: Backbone, lengths: NDArray[np.int64]) -> Division:
    """Inputs of these lengths in passes of the backbone, in the precision that the caller has set."""
    start, longest = PASS_TOKENS[backbone.device.type], backbone.sizes.max_positions
    return passes(lengths, start, tokens_of_a_kind(backbone), longest)


def tokens_of_a_kind(backbone: Backbone) -> int:
    """Of what the tokens of a pass had better be a multiple; 1 where their number makes no difference."""
    kind = backbone.device.type
    is_low = torch.is_autocast_enabled(kind) or backbone.dtype != torch.float32
    return COMPILED_TOKENS if kind == "cpu" and is_low else 1


def passes(
    lengths: NDArray[np.int64], pass_tokens: int, multiple: int = 1, longest: int | None = None
) -> Division:
    """The division of texts into passes that takes the fewest tokens, padding and starts counted.

    Args:
        lengths: of at least one text, in tokens.
        pass_tokens: what the start of a pass counts.
        multiple: of what the tokens of a pass are a multiple, if that makes no text longer than `longest`.
        longest: input that the backbone takes; None for any.
    """
    order = np.argsort(lengths, kind="stable")
    ordered, n = lengths[order], len(lengths)
    # cheapest[j] is what the j shortest texts take.
    cheapest, begin = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for stop in range(1, n + 1):
        start = np.arange(stop)
        n_texts = stop - start
        width = _padded(n_texts, ordered[stop - 1], multiple, longest)
        takes = cheapest[:stop] + n_texts * width + pass_tokens
        begin[stop] = np.argmin(takes)
        cheapest[stop] = takes[begin[stop]]
    bounds = [n]
    while bounds[-1]:
        bounds.append(int(begin[bounds[-1]]))
    edges = np.array(bounds[::-1])
    widths = _padded(np.diff(edges), ordered[edges[1:] - 1], multiple, longest)
    return Division(order, edges, widths)


def _padded(
    n_texts: NDArray[np.int64],
    longest_of: NDArray[np.int64] | np.int64,
    multiple: int,
    longest: int | None,
) -> NDArray[np.int64]:
    """Tokens of each text of a pass, so that those of all its texts are a multiple."""
    step = multiple // np.gcd(n_texts, multiple)
    width = -(-longest_of // step) * step
    return width if longest is None else np.where(width > longest, longest_of, width)
