"""Weighted values through the output projection of their block: `aligned_wva`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import Aggregation, Of
from permafrost.stages.embed.aggregations.wva import weighted_values
from permafrost.stages.embed.features import Features
from permafrost.stages.extraction.capture import Index, What
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.progress import Progress


class AlignedValues(Aggregation):
    """As `wva`, through the block's output projection, bias included (Value Aggregation, section 6.2)."""

    kind: Literal["aligned_wva"] = "aligned_wva"

    def what(self, of: Of) -> What:
        """Always values."""
        return "values"

    def stored(self, of: Of) -> tuple[What, ...]:
        """The values and the attention rows of each layer."""
        return ("attention_rows", "values")

    def width(self, of: Of, sizes: BackboneSizes) -> int:
        """The width of hidden states."""
        return sizes.d_model

    def vectors(self, of: Of, layer: Index, features: Features, progress: Progress) -> Vectors:
        """Projected layer by layer: a mean over layers cannot be projected afterwards."""
        assert layer != "final"
        weight, bias = features.projection(layer)
        aligned = weighted_values(layer, features, progress) @ weight
        return aligned if bias is None else aligned + bias
