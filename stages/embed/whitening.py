"""Whitening: directions of the training texts' vectors, each scaled to variance 1."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from permafrost.stages.embed.config import WhiteningConfig
from permafrost.storage.errors import InputError


@dataclass(frozen=True)
class Whitening:
    """An affine map fitted on training vectors."""

    mean: Float64[np.ndarray, " width"]
    matrix: Float64[np.ndarray, "width n_components"]
    """Columns are directions over their standard deviation, the largest variance first."""

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        from safetensors.numpy import save_file

        # Its directions may be columns of a reversed matrix, and the file keeps only what lies in a row.
        save_file({"mean": self.mean, "matrix": np.ascontiguousarray(self.matrix)}, path)

    @classmethod
    def load(cls, path: Path) -> "Whitening":
        """Read what `save` wrote.

        Raises:
            OSError, SafetensorError, KeyError: it is not such a file.
        """
        from safetensors.numpy import load_file

        arrays = load_file(path)
        return cls(arrays["mean"], arrays["matrix"])

    def apply(
        self, vectors: Float32[np.ndarray, "n width"]
    ) -> Float32[np.ndarray, "n n_components"]:
        """Map vectors of any texts."""
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)


def fit_whitening(
    config: WhiteningConfig, train: Float32[np.ndarray, "n_train width"]
) -> "Whitening":
    """Fit on the vectors of the training texts; mean and covariance (divided by n) in float64.

    Raises:
        InputError: fewer than two texts, all vectors equal, or more components than the training texts
            can have directions.
    """
    wide = train.astype(np.float64)
    mean = wide.mean(axis=0) if len(wide) else np.zeros(train.shape[1])
    centred = wide - mean
    covariance = centred.T @ centred / max(len(wide), 1)
    return whitening_of(config, mean, covariance, len(wide), "training texts")


def whitening_of(
    config: WhiteningConfig,
    mean: Float64[np.ndarray, " width"],
    covariance: Float64[np.ndarray, "width width"],
    n: int,
    items: str,
) -> "Whitening":
    """The map of a mean and a covariance.

    Args:
        config: how many components are kept, and from which variance on directions count.
        mean: of the vectors.
        covariance: theirs, divided by n.
        n: how many vectors there were.
        items: what they are of, for messages.

    Raises:
        InputError: fewer than two vectors, all of them equal, or more components than they can have
            directions.
    """
    width = len(mean)
    most = min(width, n - 1)
    if n < 2 or (config.n_components or 1) > most:
        raise InputError(
            f"whitening to {config.n_components or width} components was asked for, but {n} {items} with "
            f"vectors of width {width} have at most {max(most, 0)} directions; give more {items} or a "
            f"smaller n_components"
        )
    variances, directions = np.linalg.eigh(covariance)
    if variances[-1] <= 0:
        raise InputError(
            f"the vectors of all {n} {items} are equal, so there is no direction to whiten; leave whitening "
            f"out or choose another method or other layers"
        )
    # Of fewer vectors than the width, none vary in the other directions, in which other vectors do.
    kept = slice(-1, -(config.n_components or most) - 1, -1)
    floor = config.eps * variances[-1]
    scale = 1 / np.sqrt(np.maximum(variances, floor))
    return Whitening(mean, (directions * scale)[:, kept])
