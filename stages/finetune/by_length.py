"""A batch of texts through the backbone in several passes, each of texts of similar length: little is padded.

Texts do not see each other in the backbone, so the result is that of one pass, to rounding. Axes: B texts, D
width of the states, E width of the embeddings.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
    order, bounds = passes(lengths, PASS_TOKENS[backbone.device.type])
    if len(bounds) == 2:
        with around():
            return read_states(backbone, encoded, recipe, read, tokens, place)
    states: list[Tensor] = []
    for start, stop in pairwise(bounds):
        rows = order[start:stop]
        own = None if tokens is None else tokens[torch.from_numpy(rows).to(tokens.device)]
        with around():
            states.append(read_states(backbone, encoded.take(rows), recipe, read, own, place))
    back = torch.from_numpy(np.argsort(order)).to(backbone.device)
    return torch.cat(states)[back]


def passes(lengths: NDArray[np.int64], pass_tokens: int) -> tuple[NDArray[np.int64], list[int]]:
    """The division of texts into passes that takes the fewest tokens, padding and starts counted.

    Args:
        lengths: of at least one text, in tokens.
        pass_tokens: what the start of a pass counts.

    Returns:
        The texts by length, and where passes begin among them, with the end.
    """
    order = np.argsort(lengths, kind="stable")
    ordered, n = lengths[order], len(lengths)
    # cheapest[j] is what the j shortest texts take; a pass is padded to its longest.
    cheapest, begin = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for stop in range(1, n + 1):
        start = np.arange(stop)
        takes = cheapest[:stop] + (stop - start) * ordered[stop - 1] + pass_tokens
        begin[stop] = np.argmin(takes)
        cheapest[stop] = takes[begin[stop]]
    bounds = [n]
    while bounds[-1]:
        bounds.append(int(begin[bounds[-1]]))
    return order, bounds[::-1]
