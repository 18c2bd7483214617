"""The last blocks of a backbone from a stored layer: what enters the first of them is read, not computed.

As long as the blocks below are frozen, what they give a text does not change, so one extraction of one layer
stands in for all of them. The model's own forward makes masks and positions; the blocks below hand on what
they are given, and the first that runs gets the stored states in its place. So there is nothing to know of a
family but where its blocks are and how they hand on.
Axes: B texts, T positions of the longest, N tokens of all texts, D width of the states, E of the embeddings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.finetune.backbone_pass import embedding_width
from permafrost.stages.finetune.wrapping import Forward, wrapped
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader


@dataclass(frozen=True)
class CachedBelow:
    """What enters the last blocks of a backbone, for an ordered list of texts."""

    n_blocks: int
    """How many of the last blocks run."""
    reader: FeatureReader
    """Of `entering_array`, at every token of the input."""

    def take(self, texts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Ragged:
        """The rows of texts, repeats allowed.

        Args:
            texts: indices.
            lengths: the tokens that each of them has.

        Raises:
            InputError: other numbers of tokens are stored.
        """
        picked, at = np.unique(texts, return_inverse=True)
        _, stored = next(self.reader.subset(picked).in_order(len(picked)))
        rows = stored.take(at)
        if not np.array_equal(rows.lengths, lengths):
            text = int(np.flatnonzero(rows.lengths != lengths)[0])
            raise InputError(
                f"{self.reader.array} has {rows.lengths[text]} rows of text {int(texts[text])} and the text "
                f"has {lengths[text]} tokens; read a store of this tokenizer and recipe, at every token"
            )
        return rows


def run_above(backbone: Backbone, below: CachedBelow, rows: Ragged, batch: Batch) -> None:
    """One pass through the last blocks; what is recorded is up to the surrounding contexts.

    Differentiable where the caller's gradient mode says so; nothing flows below these blocks. One thread at a
    time may run the backbone.

    Args:
        backbone: the blocks below and the word embeddings may have been forgotten.
        below: how many blocks run.
        rows: of `batch`'s texts.
        batch: the input.
    """
    nothing = torch.zeros(
        (*batch.token_ids.shape, embedding_width(backbone)),
        dtype=backbone.dtype,
        device=backbone.device,
    )
    states = _padded(backbone, rows, batch)
    # In a causal model no token sees the padding to its right.
    mask = None if backbone.family.is_decoder else batch.is_token
    with _entering(backbone, backbone.sizes.n_layers - below.n_blocks, states):
        backbone.model(inputs_embeds=nothing, attention_mask=mask)


def forget_below(backbone: Backbone, n_blocks: int) -> None:
    """Free the memory of word embeddings and of all blocks but the last `n_blocks`, for good.

    Args:
        backbone: the caller's own.
        n_blocks: those that `run_above` runs.
    """
    blocks = backbone.family.block_list(backbone.model)
    for module in (backbone.model.get_input_embeddings(), *blocks[: len(blocks) - n_blocks]):
        module.to("meta")


def _padded(backbone: Backbone, rows: Ragged, batch: Batch) -> Float[Tensor, "b t d"]:
    given = torch.from_numpy(rows.data).to(backbone.device, backbone.dtype)
    shape = (*batch.token_ids.shape, given.shape[1])
    if batch.flat is None:
        return given.reshape(shape)
    return given.new_zeros(shape).flatten(0, 1).index_copy(0, batch.flat, given).reshape(shape)


@contextmanager
def _entering(backbone: Backbone, n_below: int, states: Float[Tensor, "b t d"]) -> Iterator[None]:
    """In the body, so many first blocks compute nothing, and the next one gets `states`."""

    handed_on = _handed_on if backbone.family.block_returns == "states" else _handed_on_in_a_tuple

    def around(block: int, forward: Forward) -> Forward:
        if block < n_below:
            return handed_on
        return partial(_given, states, forward) if block == n_below else forward

    with wrapped(backbone.family.block_list(backbone.model), around):
        yield


def _handed_on(*args: Any, **kwargs: Any) -> Tensor:
    """A block that does not run."""
    return args[0] if args else kwargs["hidden_states"]


def _handed_on_in_a_tuple(*args: Any, **kwargs: Any) -> tuple[Tensor]:
    """The same where the model takes its states out of a tuple."""
    return (_handed_on(*args, **kwargs),)


def _given(states: Tensor, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """A block, with other states than those of the block before it."""
    if args:
        return forward(states, *args[1:], **kwargs)
    return forward(**{**kwargs, "hidden_states": states})
