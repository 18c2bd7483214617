"""Contrastive prompting: one block's attention-head outputs under an auxiliary prompt are subtracted from
those under the main prompt.

Contrastive Prompting (CP, section 3) changes the input of one block's output projection at the last
token. The auxiliary prompts run first, and only up to that projection. The hooks read a context variable,
as the recording hooks do.

Axes: B texts, T positions, Z columns of all heads side by side.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.families import Family
from permafrost.stages.extraction.recipes.recipe import Intervention
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted

TINY = 1e-7
"""Added to the norm of a difference before dividing by it, as in CP's released code."""


@runtime_checkable
class HeadsWatcher(Protocol):
    """Sees the input of every output projection, and may replace it."""

    def project(self, block: int, heads_BTZ: Tensor) -> Tensor:
        """The input of the output projection of `block` (1-based), in place of `heads_BTZ`."""
        ...


class _HeadsKeptError(Exception):
    """Leaves the auxiliary pass early; never seen outside `kept_heads`."""


class Auxiliary:
    """Keeps one block's head outputs at the last token, and ends the pass there."""

    def __init__(self, block: int, batch: Batch) -> None:
        """Args: block: 1-based. batch: the auxiliary prompts."""
        self.heads: Tensor | None = None
        self._block = block
        self._batch = batch

    def project(self, block: int, heads_BTZ: Tensor) -> Tensor:
        """Called before the output projection of `block`."""
        if block == self._block:
            self.heads = self._batch.at(self._batch.last, heads_BTZ)
            raise _HeadsKeptError
        return heads_BTZ


class Contrast:
    """Replaces one block's head outputs at the last token."""

    def __init__(
        self, intervention: Intervention, batch: Batch, auxiliary: Float[Tensor, "b z"]
    ) -> None:
        """Args: intervention: of the recipe. batch: the main prompts. auxiliary: head outputs under the
        auxiliary prompt."""
        self._intervention = intervention
        self._batch = batch
        self._auxiliary = auxiliary
        self._n_changed = 0

    def project(self, block: int, heads_BTZ: Tensor) -> Tensor:
        """The input of the output projection of `block`, in place of `heads_BTZ`."""
        if block != self._intervention.block:
            return heads_BTZ
        self._n_changed += 1
        last = self._batch.last
        heads_BZ = self._batch.at(last, heads_BTZ)
        changed = contrasted(heads_BZ, self._auxiliary, self._intervention)
        text_B = torch.arange(len(last), device=last.device)
        return heads_BTZ.index_put((text_B, last), changed)

    def require_complete(self, model_type: str) -> None:
        """Raises: PermafrostError: the heads' outputs were not changed exactly once."""
        if self._n_changed != 1:
            raise PermafrostError(
                f"the output projection of block {self._intervention.block} of a {quoted(model_type)} "
                "backbone "
                f"ran {self._n_changed} times in one forward pass instead of once; nothing of this batch "
                f"was kept. This model does not run as its architecture's description in families.py says"
            )


def contrasted(
    positive: Float[Tensor, "b z"], negative: Float[Tensor, "b z"], intervention: Intervention
) -> Float[Tensor, "b z"]:
    """The difference of two prompts' head outputs, multiplied by a coefficient (`scaled`) or rescaled to the
    norm of the first (`norm`); in float32, rounded once. CP's released code computes in the model's dtype."""
    before = positive.float()
    difference = before - negative.float()
    if intervention.mode == "scaled":
        return (intervention.coefficient * difference).to(positive.dtype)
    lengths = difference.norm(dim=-1, keepdim=True) + TINY
    return (difference * before.norm(dim=-1, keepdim=True) / lengths).to(positive.dtype)


_heads: ContextVar[HeadsWatcher | None] = ContextVar("permafrost_heads", default=None)


@contextmanager
def contrasting(heads: HeadsWatcher | None) -> Iterator[None]:
    """Pass head outputs to `heads` inside the `with` body; None leaves the forward pass as it is."""
    token = _heads.set(heads)
    try:
        yield
    except _HeadsKeptError:
        pass
    finally:
        _heads.reset(token)


def watch_heads(model: "transformers.PreTrainedModel", family: Family) -> None:
    """Install the hooks."""
    for k in range(1, len(family.block_list(model)) + 1):
        family.projection_module(model, k).register_forward_pre_hook(partial(_before_projection, k))


def _before_projection(block: int, module: nn.Module, args: tuple[Any, ...]) -> Tensor | None:
    heads = _heads.get()
    return None if heads is None else heads.project(block, args[0])
