"""From one number per token to curves over the position in the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64
from numpy.typing import NDArray

from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.metrics.correlations import spearman
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.sensitivity.config import Readout

Source = Literal["autograd", "attention product"]
READOUT_NAMES: dict[Readout, str] = {"readout": "readout token", "mean": "mean"}
"""What readouts are called in figures."""

PROFILE = pa.schema(
    [
        ("readout", pa.string()),
        ("source", pa.string()),
        ("position", pa.float64()),
        ("density", pa.float64()),
        ("sd", pa.float64()),
        ("n_texts", pa.int64()),
    ]
)
"""`position`: middle of a part of the text, 0 its beginning, 1 its end. `density`: share of the whole that
falls on a token there, times the number of tokens, so that 1 is an even share; mean over texts. `sd` over
texts, null for one text."""

LEVELS = pa.schema(
    [
        ("readout", pa.string()),
        ("sensitivity", pa.float64()),
        ("rank_correlation", pa.float64()),
        ("n_texts", pa.int64()),
    ]
)
"""`sensitivity`: mean over tokens and texts of the root mean square singular value. `rank_correlation`:
Spearman's, between the two sources over the tokens of a text, mean over texts."""


@dataclass(frozen=True)
class TextProfile:
    """The text's own tokens under one readout, in order."""

    readout: Readout
    gradients: Float64[np.ndarray, " n"]
    products: Float64[np.ndarray, " n"]


@dataclass(frozen=True)
class SensitivityProfile:
    """The results over a sample of texts."""

    profile: pa.Table
    """Columns of `PROFILE`."""
    levels: pa.Table
    """Columns of `LEVELS`."""

    @property
    def curves(self) -> ProbeCurves:
        """Densities over the text, by readout and source."""
        points = [
            Point(
                f"{row['source']}, {READOUT_NAMES[row['readout']]}",
                "number",
                row["position"],
                f"{row['position']:.0%}",
                row["density"],
            )
            for row in self.profile.to_pylist()
        ]
        return ProbeCurves("position in the text", tuple(points))

    @property
    def summary(self) -> dict[str, float]:
        """The levels, by name."""
        return {
            f"{name} of {READOUT_NAMES[row['readout']]}": row[name]
            for row in self.levels.to_pylist()
            for name in ("sensitivity", "rank_correlation")
        }

    def save(self, folder: Path) -> None:
        """Write profile.parquet and levels.parquet, and the curves."""
        self.curves.save(folder)
        pq.write_table(self.profile, folder / "profile.parquet")
        pq.write_table(self.levels, folder / "levels.parquet")

    @classmethod
    def load(cls, folder: Path) -> "SensitivityProfile":
        """Read what `save` wrote."""
        return cls(
            pq.read_table(folder / "profile.parquet"), pq.read_table(folder / "levels.parquet")
        )


def own_tokens(encoded: Encoded, text: int) -> NDArray[np.int64]:
    """Places of a text's own tokens in its input: no prompt, no special token, no placeholder."""
    ids = encoded.token_ids[text]
    places = np.arange(encoded.span_start[text], encoded.span_end[text])
    return places[ids[places] >= 0]


def density_by_position(
    values: Float64[np.ndarray, " n"], n_bins: int
) -> Float64[np.ndarray, " b"]:
    """Mean density in each of `n_bins` equal parts of a text of at least as many tokens.

    Density is a token's share of the sum, times the number of tokens.
    """
    n = len(values)
    assert n >= n_bins, "a part without a token"
    part = np.floor((np.arange(n) + 0.5) / n * n_bins).astype(np.int64)
    sums = np.bincount(part, weights=values, minlength=n_bins)
    return sums / np.bincount(part, minlength=n_bins) * n / values.sum()


def combined(
    texts: Sequence[TextProfile], readouts: Sequence[Readout], n_bins: int
) -> SensitivityProfile:
    """Curves and levels over all texts."""
    curves: list[dict[str, object]] = []
    levels: list[dict[str, object]] = []
    for readout in readouts:
        profiles = [text for text in texts if text.readout == readout]
        sources: dict[Source, list[NDArray[np.float64]]] = {
            "autograd": [text.gradients for text in profiles],
            "attention product": [text.products for text in profiles],
        }
        for source, values in sources.items():
            densities = np.stack([density_by_position(v, n_bins) for v in values])
            means = densities.mean(axis=0)
            sds = densities.std(axis=0, ddof=1) if len(profiles) > 1 else [None] * n_bins
            curves += [
                {
                    "readout": readout,
                    "source": source,
                    "position": (b + 0.5) / n_bins,
                    "density": means[b],
                    "sd": sds[b],
                    "n_texts": len(profiles),
                }
                for b in range(n_bins)
            ]
        levels.append(
            {
                "readout": readout,
                "sensitivity": float(np.mean([text.gradients.mean() for text in profiles])),
                "rank_correlation": float(
                    np.mean([spearman(t.gradients, t.products) for t in profiles])
                ),
                "n_texts": len(profiles),
            }
        )
    return SensitivityProfile(_table(curves, PROFILE), _table(levels, LEVELS))


def _table(rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    return pa.table({name: [row[name] for row in rows] for name in schema.names}, schema=schema)
