"""The geometry of vectors, layer by layer: anisotropy and effective dimension.

Sources: anisotropy is the mean cosine of vectors of different texts (Ethayarajh 2019, "How Contextual are
Contextualized Word Representations?", section 3.3, who draws 1,000 pairs; here it is the mean over all pairs,
which takes a single sum). Effective dimensions come from the covariance's eigenvalues l: the participation
ratio (sum l)^2 / sum l^2, and the effective rank exp(entropy of l / sum l) of Roy and Vetterli 2007, who use
singular values, the square roots of these, which gives more weight to small directions.

Axes: N vectors, D width, T texts.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from pydantic import Field

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import Features
from permafrost.stages.extraction.capture import ArrayName, At
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.probes.stored import StoredLayers, place
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.ragged import Ragged

_TEXTS_AT_A_TIME = 64
_RESOLUTION = 1e-14
"""A variance below this share of the mean square is due to rounding: the vectors are equal."""


class GeometryConfig(StoredLayers):
    """Which vectors to measure."""

    at: At = "mean"
    """One vector per text (`mean`, `last`, `readout`), or every token of the span (`tokens`)."""
    n_texts: int = Field(default=2000, ge=2, le=MAX_TEXTS)
    """Maximum number of texts; chosen by a hash of seed and text, so that their order does not matter."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""


@dataclass(frozen=True)
class Geometry:
    """Anisotropy and effective dimensions of a set of vectors."""

    n_vectors: int
    mean_cosine: float
    """Over all pairs of vectors of different texts."""
    mean_cosine_inside: float | None
    """Over all pairs of different vectors of the same text; None if no text has two."""
    participation_ratio: float
    effective_rank: float


def probe_geometry(
    config: GeometryConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> ProbeCurves:
    """Anisotropy and effective dimension of every layer; does not use labels or splits.

    Raises:
        InputError: there are fewer than two texts, a vector is zero or not finite, the recipe is an ensemble
            of prompts, or the backbone does not have a layer.
    """
    if len(prompt_features) != 1:
        raise InputError(
            f"the geometry of an ensemble of {len(prompt_features)} prompts was asked for, but each has "
            "a space of its own; take one prompt of it"
        )
    (features,), sizes = prompt_features, prompt_features[0].sizes
    texts = chosen_texts(corpus.digests, config)
    arrays = config.arrays(sizes)
    points: list[Point] = []
    progress.start("probe", len(arrays) * len(texts), "texts")
    try:
        for array in arrays:
            layer = ArrayName.parse(array).index
            reader = features.reader(array, "span").subset(texts)
            by_text = geometry(_counted(reader.in_order(_TEXTS_AT_A_TIME), progress), array)
            x, at = place(layer, sizes), str(layer)
            values = {
                "mean cosine": by_text.mean_cosine,
                "mean cosine inside a text": by_text.mean_cosine_inside,
                "participation ratio": by_text.participation_ratio,
                "effective rank": by_text.effective_rank,
            }
            points += [
                Point(measure, "number", x, at, value)
                for measure, value in values.items()
                if value is not None
            ]
    finally:
        progress.finish()
    return ProbeCurves("layer", tuple(points))


def chosen_texts(digests: Sequence[str], config: GeometryConfig) -> Int64[np.ndarray, " n"]:
    """Indices of the texts to measure, ascending.

    Raises:
        InputError: there are fewer than two texts.
    """
    if len(digests) < 2:
        raise InputError(
            f"the geometry of vectors is that of pairs of texts, and the corpus has {len(digests)}; give at "
            "least two"
        )
    order = sorted(
        range(len(digests)),
        key=lambda i: hashlib.sha256(f"{config.seed}:{digests[i]}".encode()).digest(),
    )
    return np.sort(np.array(order[: config.n_texts], dtype=np.int64))


def geometry(batches: Iterable[Ragged], where: str = "the vectors") -> Geometry:
    """Measure vectors given in batches of whole texts `[n_vectors, D]`, in one pass and O(D^2) memory.

    With u the normalised vectors, S the sum over a text and U the sum over all, the mean cosine between
    different texts is (|U|^2 - sum |S|^2) / (N^2 - sum n^2), and within texts (sum |S|^2 - sum |u|^2) /
    (sum n^2 - N). Sums are in float64. Equal vectors have dimension 0.

    Raises:
        InputError: fewer than two texts have vectors, or a vector is zero or not finite.
    """
    sums: _Sums | None = None
    for rows in batches:
        sums = sums or _Sums(rows.data.shape[1])
        sums.add(rows, where)
    if sums is None or sums.n**2 == sums.squared_counts:
        raise InputError(
            f"{where} are those of fewer than two texts; a cosine of different texts needs two"
        )
    n_inside = sums.squared_counts - sums.n
    is_point = np.trace(sums.scatter) <= _RESOLUTION * sums.squared_lengths
    participation, rank = (0.0, 0.0) if is_point else dimensions(sums.scatter)
    between = float(sums.units @ sums.units) - sums.by_text
    return Geometry(
        n_vectors=sums.n,
        mean_cosine=between / (sums.n**2 - sums.squared_counts),
        mean_cosine_inside=(sums.by_text - sums.alone) / n_inside if n_inside else None,
        participation_ratio=participation,
        effective_rank=rank,
    )


def dimensions(covariance: Float64[np.ndarray, "d d"]) -> tuple[float, float]:
    """Participation ratio and effective rank of a covariance, or of a multiple of it; 0 for a zero matrix."""
    eigenvalues = np.clip(np.linalg.eigvalsh(covariance), 0, None)
    if not eigenvalues.any():
        return 0.0, 0.0
    shares = eigenvalues / eigenvalues.sum()
    positive = shares[shares > 0]
    entropy = -np.sum(positive * np.log(positive))
    return float(1 / np.sum(shares**2)), float(np.exp(entropy))


class _Sums:
    """Running sums from which the geometry is computed."""

    def __init__(self, width: int) -> None:
        self.n = 0
        self.squared_counts = 0
        """Sum over texts of the square of their number of vectors."""
        self.units = np.zeros(width)
        self.by_text = 0.0
        self.alone = 0.0
        self.mean = np.zeros(width)
        self.scatter = np.zeros((width, width))
        """Sum of (x - mean)(x - mean)^T."""
        self.squared_lengths = 0.0

    def add(self, rows: Ragged, where: str) -> None:
        """Add a batch of whole texts."""
        if not len(rows.data):
            return
        wide = rows.data.astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise InputError(
                f"{where} hold a vector of zeros or of non-finite numbers, which has no direction; run "
                "'permafrost verify', or leave this layer out"
            )
        self._add_directions(wide / lengths[:, None], rows.offsets)
        self._add_moments(wide)
        self.squared_lengths += float(lengths @ lengths)
        self.n += len(wide)

    def _add_directions(
        self, units_ND: Float64[np.ndarray, "n d"], offsets: Int64[np.ndarray, " t_plus_1"]
    ) -> None:
        from scipy import sparse

        counts = np.diff(offsets)
        ones = (np.ones(len(units_ND)), np.arange(len(units_ND)), offsets)
        sums_TD = sparse.csr_array(ones, shape=(len(counts), len(units_ND))) @ units_ND
        self.squared_counts += int(counts @ counts)
        self.units += units_ND.sum(axis=0)
        self.by_text += float(np.sum(sums_TD**2))
        self.alone += float(np.sum(units_ND**2))

    def _add_moments(self, rows_ND: Float64[np.ndarray, "n d"]) -> None:
        # Merged as in Chan, Golub and LeVeque (1979), so that a mean far from 0 loses no precision.
        n, mean = len(rows_ND), rows_ND.mean(axis=0)
        centred, shift = rows_ND - mean, mean - self.mean
        self.scatter += centred.T @ centred + np.outer(shift, shift) * (self.n * n / (self.n + n))
        self.mean += shift * (n / (self.n + n))


def _counted(
    batches: Iterable[tuple[Int64[np.ndarray, " b"], Ragged]], progress: Progress
) -> Iterable[Ragged]:
    for texts, rows in batches:
        yield rows
        progress.advance(len(texts))
