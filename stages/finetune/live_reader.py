"""Rows of texts that the backbone computes when they are asked for, in place of those in a store.

With gradients for training, and as a reader of features for everything that reads a store.
Axes: t rows of all texts, n texts, d width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import ArrayName, deepest_block
from permafrost.stages.extraction.forward import padded_batch
from permafrost.stages.extraction.recipes import Encoded, Recipe
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.finetune.by_length import PASS_TOKENS, passes
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import Batch


@dataclass(frozen=True)
class LiveReader:
    """One array of the backbone as it is now, for an ordered list of texts.

    Reads as `storage.readers.FeatureReader` does, in float32 and in evaluation mode, so every reading runs
    the backbone. Texts are padded in passes of similar lengths, which changes rows by rounding only.
    """

    backbone: Backbone
    recipe: Recipe
    """Resolved, and one that only writes the text."""
    encoded: Encoded
    """The texts, encoded under it."""
    array: str
    """As a store names it, e.g. `hidden/6`."""
    index: NDArray[np.int64] | None = None
    """Which of `encoded` the texts are; None for all of them in order."""

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.encoded) if self.index is None else len(self.index)

    @property
    def width(self) -> int:
        """Number of columns."""
        return ArrayName.parse(self.array).width(self.backbone.sizes)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each text `[n_texts]`: the tokens that poolings run over."""
        if ArrayName.parse(self.array).axis == "text":
            return np.ones(self.n_texts, np.int64)
        span = self.encoded.span
        rows = np.add.reduceat(span.data.astype(np.int64), span.offsets[:-1])
        return rows if self.index is None else rows[self.index]

    def rows(self, texts: NDArray[np.int64]) -> tuple[Float[Tensor, "t d"], Int64[Tensor, " n1"]]:
        """The rows of texts, repeats allowed, one text after the other, and where each begins.

        Differentiable by the backbone's trainable weights where the caller's gradient mode says so.
        """
        encoded = self.encoded.take(texts if self.index is None else self.index[texts])
        order, bounds = passes(encoded.token_ids.lengths, PASS_TOKENS[self.backbone.device.type])
        parts: list[Tensor] = []
        for start, stop in pairwise(bounds):
            parts += self._pass(encoded.take(order[start:stop]))
        back = np.argsort(order)
        offsets = offsets_of([len(parts[at]) for at in back])
        device = self.backbone.device
        return torch.cat([parts[at] for at in back]), torch.from_numpy(offsets).to(device)

    def _pass(self, encoded: Encoded) -> list[Tensor]:
        batch = padded_batch(self.backbone, encoded, self.recipe)
        name = ArrayName.parse(self.array)
        sizes = self.backbone.sizes
        deepest = None if name.index == "final" else deepest_block([self.array], sizes)
        recorder = Recorder([name], batch, deepest)
        # In a causal model no token sees the padding to its right.
        mask = None if self.backbone.family.is_decoder else batch.is_token
        with recording(recorder):
            self.backbone.model(input_ids=batch.token_ids, attention_mask=mask)
        recorder.require_complete(sizes.model_type)
        rows = recorder.rows[name.text].float()
        if name.axis == "text":
            return list(rows.split(1))
        span = encoded.span
        inside = torch.from_numpy(np.flatnonzero(span.data)).to(rows.device)
        counts = np.add.reduceat(span.data.astype(np.int64), span.offsets[:-1])
        return list(rows[inside].split(counts.tolist()))

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
