"""Features of a batch of texts, computed directly by the backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.embed.features import Projection, Tokens
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.non_finite import NonFiniteError, explained
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import OverflowRangeError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader, InMemoryReader


@dataclass(frozen=True)
class ComputedFeatures:
    """The features that a store would hold for these texts."""

    backbone: Backbone
    texts: Sequence[str]
    encoded: Encoded
    rows: Mapping[str, NDArray[np.float32]]
    """Rows by array name, per token of the input or per text."""

    @property
    def sizes(self) -> BackboneSizes:
        """Sizes of the backbone."""
        return self.backbone.sizes

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.texts)

    def reader(self, array: str, tokens: Tokens) -> FeatureReader:
        """A reader of one array, over the tokens of the span or over all of the input."""
        rows, span = self.rows[array], self.encoded.span
        if ArrayName.parse(array).axis == "text":
            return InMemoryReader(array, Ragged(rows, np.arange(self.n_texts + 1)))
        if tokens == "all" or span.data.all():
            return InMemoryReader(array, Ragged(rows, span.offsets))
        kept = np.flatnonzero(span.data)
        return InMemoryReader(array, Ragged(rows[kept], np.searchsorted(kept, span.offsets)))

    def projection(self, block: int) -> Projection:
        """The output projection of a block."""
        return output_projection(self.backbone, block)

    def name(self, text: int) -> str:
        """The beginning of a text, as its index in the batch would not help a reader."""
        return f"the text {quoted(self.texts[text])}"


def compute_features(
    backbone: Backbone, target: ExtractTarget, texts: Sequence[str], encoded: Encoded
) -> ComputedFeatures:
    """Run one padded batch; the features are rounded as in the store of `target`.

    Args:
        backbone: the backbone of `target`.
        target: recipe, arrays and identity.
        texts: for messages.
        encoded: the texts under the recipe of `target`.

    Raises:
        OverflowRangeError: an activation does not fit the storage dtype.
        PermafrostError: the backbone produced NaN or infinity.
    """
    dtype = target.identity.storage_dtype
    outputs = forward(backbone, encoded, target.arrays, target.recipe)
    try:
        rows = {n: as_stored(n, values, dtype).cpu().numpy() for n, values in outputs.items()}
    except NonFiniteError as error:
        raise explained(error, backbone, "no vector was made") from error
    return ComputedFeatures(backbone, texts, encoded, rows)


def as_stored(name: str, rows: Float[Tensor, "n d"], dtype: FloatName) -> Float[Tensor, "n d"]:
    """The float32 numbers that would be read back if the rows were stored in `dtype`.

    Raises:
        OverflowRangeError: a finite activation is too large for the dtype.
        NonFiniteError: an activation is NaN or infinite.
    """
    low, high = (float(x) for x in torch.aminmax(rows))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise NonFiniteError(name)
    storage = getattr(torch, dtype)
    largest = max(abs(low), abs(high))
    if largest > torch.finfo(storage).max:
        raise OverflowRangeError(
            f"{name} holds the activation {low if -low == largest else high:.6g}, beyond the range of "
            f"{dtype} (±{torch.finfo(storage).max:.6g}), in which features are kept here; no vector was "
            f"made. Keep them in bfloat16 or float32 (for a trained head: extract and train again with "
            f"that store dtype)"
        )
    return rows.to(storage).float()
