"""Changing a running forward pass: placeholders get an embedding, and states are copied between blocks.

As in Hierarchical Token Prepending (HTP, section 4) and Token Prepending (TP): before some of the blocks,
placeholders in the input take over the states of later tokens, so that earlier tokens can attend to a
summary of them. TP and HTP give placeholders an embedding by growing the vocabulary; here the model stays
as it is and the embedding layer's output is overwritten. Copies are made out of place: captures hold the
residual stream before the copies.

Hooks are installed once, when a model is loaded; they look for a `Rewired` in a context variable, so
threads that share a model do not affect each other, and a pass without one runs as usual.

Axes: B texts, T positions, D columns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.families import Family
from permafrost.stages.extraction.recipes.recipe import Rewiring
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted

_MEAN = "permafrost_mean"
_KINDS = 2
"""Local and opening placeholders."""


class Rewired:
    """What a rewiring does to one batch."""

    def __init__(self, rewiring: Rewiring, batch: Batch) -> None:
        """Args: rewiring: of the recipe. batch: the input."""
        self._rewiring = rewiring
        self._batch = batch
        self._rewired_blocks: list[int] = []
        self._n_embedded = 0

    def embed(self, module: nn.Module, embeddings: Float[Tensor, "b t d"]) -> Tensor:
        """The output of the embedding layer `module`, with the placeholders' embeddings put in."""
        self._n_embedded += 1
        placeholders = self._batch.placeholders
        if placeholders is None:
            return embeddings
        rows_KD = placeholder_rows(module, self._rewiring).to(embeddings.dtype)
        return _replaced(embeddings, placeholders.at, rows_KD[placeholders.kind])

    def rewire(self, block: int, states: Float[Tensor, "b t d"]) -> Tensor:
        """The input of block `block` (0-based), in place of `states`."""
        if not self._rewiring.start <= block < self._rewiring.stop:
            return states
        self._rewired_blocks.append(block)
        copies = self._batch.copies
        if copies is None:
            return states
        return _replaced(states, copies.target, states.flatten(0, 1)[copies.source])

    def require_complete(self, n_run: int, model_type: str) -> None:
        """Check that the first `n_run` blocks ran as the rewiring says.

        Raises:
            PermafrostError: a block that should have been rewired was not, or the input was not embedded
                exactly once.
        """
        expected = list(range(self._rewiring.start, min(self._rewiring.stop, n_run)))
        if self._rewired_blocks != expected or self._n_embedded != 1:
            raise PermafrostError(
                f"in one forward pass of a {quoted(model_type)} backbone, placeholders were embedded "
                f"{self._n_embedded} times instead of once and states were copied before the blocks "
                f"{[b + 1 for b in self._rewired_blocks]} instead of {[b + 1 for b in expected]}; nothing of "
                f"this batch was kept. This model does not run as its architecture's description in "
                f"families.py says"
            )


def placeholder_rows(module: nn.Module, rewiring: Rewiring) -> Float[Tensor, "2 d"]:
    """Embeddings of local and opening placeholders, as the embedding layer `module` would give them.

    `mean` is what growing the vocabulary amounts to in transformers (HTP's released code does that), up
    to a jitter of 1e-9 of the embeddings' covariance; `noise` is what TP's released code writes into the
    embedding matrix, except that here it is drawn on the CPU from its own seed.
    """
    weight = cast(Tensor, module.weight)
    if rewiring.placeholder == "mean":
        rows_KD = _mean_embedding(module).expand(_KINDS, -1)
    else:
        generator = torch.Generator().manual_seed(rewiring.seed)
        rows_KD = torch.randn(_KINDS, weight.shape[1], generator=generator)
    rows_KD = rows_KD.to(weight.device, weight.dtype)
    # Gemma's embedding layer multiplies what it looks up.
    scale = cast(Tensor | None, getattr(module, "embed_scale", None))
    return rows_KD if scale is None else rows_KD * scale.to(weight.dtype)


def _mean_embedding(module: nn.Module) -> Float[Tensor, " d"]:
    # The weights are frozen, so it is computed once; two threads that race compute the same value.
    if not hasattr(module, _MEAN):
        weight = cast(Tensor, module.weight)
        setattr(module, _MEAN, weight.detach().mean(0, dtype=torch.float32))
    return cast(Tensor, getattr(module, _MEAN))


def _replaced(
    rows: Float[Tensor, "b t d"], at: Tensor, with_rows: Float[Tensor, "n d"]
) -> Float[Tensor, "b t d"]:
    # Out of place, so that recorded rows stay as they were.
    return rows.flatten(0, 1).index_copy(0, at, with_rows).view_as(rows)


_rewired: ContextVar[Rewired | None] = ContextVar("permafrost_rewired", default=None)


@contextmanager
def rewiring(rewired: Rewired | None) -> Iterator[None]:
    """Rewire the forward pass in the `with` body; None leaves it as it is."""
    token = _rewired.set(rewired)
    try:
        yield
    finally:
        _rewired.reset(token)


def watch_rewiring(model: "transformers.PreTrainedModel", family: Family) -> None:
    """Install the hooks, after the recording ones, so that a block's input is recorded before the copies."""
    cast(nn.Module, model.get_input_embeddings()).register_forward_hook(_after_embedding)
    for k, block in enumerate(family.block_list(model)):
        block.register_forward_pre_hook(partial(_before_block, k), with_kwargs=True)


def _after_embedding(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    rewired = _rewired.get()
    return None if rewired is None else rewired.embed(module, output)


def _before_block(
    block: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    rewired = _rewired.get()
    if rewired is None:
        return None
    if args:
        return (rewired.rewire(block, args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": rewired.rewire(block, kwargs["hidden_states"])}
