"""Rows of texts that the backbone computes when they are asked for, in place of those in a store.

With gradients for training, and as a reader of features for everything that reads a store.
Axes: t rows of all texts, n texts, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch as Padded
from permafrost.stages.extraction.capture import (
    ArrayName,
    Index,
    What,
    deepest_block,
)
from permafrost.stages.extraction.forward import padded_batch
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Leave, Recorder, recording
from permafrost.stages.finetune.backbone_pass import widened
from permafrost.stages.finetune.by_length import divided
from permafrost.stages.finetune.cached_below import CachedBelow, run_above
from permafrost.stages.finetune.read_arrays import arrays_of
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import Batch


class _LateRecorder(Recorder):
    """Picks rows out after the pass. A block that is computed again on the way back is not recorded then, and
    has to save in both passes the same tensors."""

    def __init__(
        self, names: Sequence[ArrayName], batch: Padded, stop_after: int | None, leave: Leave
    ) -> None:
        super().__init__(names, batch, stop_after, leave=leave)
        self._passed: list[tuple[What, Index, Tensor]] = []

    def _record(self, what: What, index: Index, rows_BTD: Tensor) -> None:
        if (what, index) in self._wanted:
            self._passed.append((what, index, rows_BTD))

    def finish(self, model_type: str) -> dict[str, Tensor]:
        """The rows of each array; raises as `require_complete`."""
        for what, index, rows_BTD in self._passed:
            super()._record(what, index, rows_BTD)
        self.require_complete(model_type)
        return self.rows


@dataclass(frozen=True)
class LiveReader:
    """One array of the backbone as it is now, or the mean of several, for an ordered list of texts.

    Reads as `storage.readers.FeatureReader` does, in float32 and in evaluation mode, so every reading runs
    the backbone. Texts are padded in passes of similar lengths, which changes rows by rounding only.
    """

    backbone: Backbone
    recipe: Recipe
    """Resolved, and one that only writes the text."""
    encoded: Encoded
    """The texts, encoded under it."""
    array: str
    """As a store names it, e.g. `hidden/6`, or several, see `arrays_of`: row by row their mean."""
    below: CachedBelow | None = None
    """Stored states of `encoded`, from which the last blocks run; None: the whole backbone runs."""
    index: NDArray[np.int64] | None = None
    """Which of `encoded` the texts are; None for all of them in order."""

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.encoded) if self.index is None else len(self.index)

    @cached_property
    def _names(self) -> tuple[ArrayName, ...]:
        return arrays_of(self.array, self.backbone.sizes)

    @cached_property
    def _last_block(self) -> tuple[int | None, Leave]:
        """The last block that runs, None for the whole backbone, and where it is left."""
        names, sizes = self._names, self.backbone.sizes
        if any(name.index == "final" for name in names):
            return None, "after"
        last = deepest_block([name.text for name in names], sizes)
        # What a block attends to is known before it attends; a hidden state is what it gives out.
        ends = any(name.what == "hidden" for name in names if name.block(sizes) == last)
        return last, "after" if ends else "inside"

    @property
    def n_whole_blocks(self) -> int | None:
        """How many blocks run to their end; None for all."""
        last, leave = self._last_block
        return last if last is None or leave == "after" else last - 1

    @property
    def width(self) -> int:
        """Number of columns."""
        return self._names[0].width(self.backbone.sizes)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each text `[n_texts]`: the tokens that poolings run over."""
        if self._names[0].axis == "text":
            return np.ones(self.n_texts, np.int64)
        span = self.encoded.span
        rows = np.add.reduceat(span.data.astype(np.int64), span.offsets[:-1])
        return rows if self.index is None else rows[self.index]

    def rows(
        self,
        texts: NDArray[np.int64],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> tuple[Float[Tensor, "t d"], Int64[Tensor, " n1"]]:
        """The rows of texts, repeats allowed, one text after the other, and where each begins.

        Differentiable by the backbone's trainable weights where the caller's gradient mode says so.

        Args:
            texts: their numbers.
            around: each pass of the backbone is made in a context of its own.
        """
        own = texts if self.index is None else self.index[texts]
        encoded = self.encoded.take(own)
        found = divided(self.backbone, encoded.token_ids.lengths)
        parts: list[Tensor] = []
        for (start, stop), width in zip(pairwise(found.bounds), found.widths.tolist(), strict=True):
            here = found.order[start:stop]
            with around():
                parts += self._pass(encoded.take(here), own[here], width)
        back = np.argsort(found.order)
        offsets = offsets_of([len(parts[at]) for at in back])
        device = self.backbone.device
        return torch.cat([parts[at] for at in back]), torch.from_numpy(offsets).to(device)

    def _pass(self, encoded: Encoded, texts: NDArray[np.int64], width: int) -> list[Tensor]:
        batch = padded_batch(self.backbone, encoded, self.recipe)
        if width > batch.token_ids.shape[1]:
            batch = widened(batch, width)
        last, leave = self._last_block
        recorder = _LateRecorder(self._names, batch, last, leave)
        with recording(recorder):
            self._run(texts, encoded, batch)
        found = recorder.finish(self.backbone.sizes.model_type)
        first, *others = (found[name.text].float() for name in self._names)
        rows = sum(others, start=first) / (1 + len(others)) if others else first
        if self._names[0].axis == "text":
            return list(rows.split(1))
        span = encoded.span
        inside = torch.from_numpy(np.flatnonzero(span.data)).to(rows.device)
        counts = np.add.reduceat(span.data.astype(np.int64), span.offsets[:-1])
        return list(rows[inside].split(counts.tolist()))

    def _run(self, texts: NDArray[np.int64], encoded: Encoded, batch: Padded) -> None:
        if self.below is not None:
            rows = self.below.take(texts, encoded.token_ids.lengths)
            run_above(self.backbone, self.below, rows, batch)
            return
        # In a causal model no token sees the padding to its right.
        mask = None if self.backbone.family.is_decoder else batch.is_token
        self.backbone.model(input_ids=batch.token_ids, attention_mask=mask)

    @torch.no_grad()
    def _batch(self, texts: NDArray[np.int64]) -> Batch:
        rows, offsets = self.rows(texts)
        return texts, Ragged(rows.cpu().numpy(), offsets.cpu().numpy())

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every text once, in order."""
        texts = np.arange(self.n_texts)
        return (self._batch(texts[at : at + batch_size]) for at in range(0, len(texts), batch_size))

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every text once, in the order of a store's readers for (seed, epoch)."""
        texts = np.random.default_rng([seed, epoch]).permutation(self.n_texts)
        return (self._batch(texts[at : at + batch_size]) for at in range(0, len(texts), batch_size))

    def subset(self, indices: NDArray[np.int64]) -> "LiveReader":
        """A reader of these texts only, numbered from 0 again."""
        return replace(self, index=indices if self.index is None else self.index[indices])
