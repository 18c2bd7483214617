"""The last steps on vectors: checks, whitening, unit length."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.embed.whitening import Whitening, fit_whitening
from permafrost.storage.errors import InputError

_NOT_FITTED = (
    "whitening is fitted on training texts, and none were named; give the rows of the training split, or "
    "leave whitening out"
)


def finish(
    config: EmbedConfig,
    vectors: Vectors,
    name: Callable[[int], str],
    *,
    whitening: Whitening | None = None,
) -> Vectors:
    """Whiten and normalise as `config` says.

    Args:
        config: whitening and normalisation.
        vectors: combined over layers and members.
        name: what a text is called in messages.
        whitening: as fitted by `whitening_of`, where `config` asks for one.

    Raises:
        InputError: a non-finite vector, whitening that was not fitted, or a vector of length 0 to be
            normalised.
    """
    require_finite(vectors, name, _embeddings_of(config))
    if config.whitening is not None:
        if whitening is None:
            raise InputError(_NOT_FITTED)
        vectors = whitening.apply(vectors)
    return vectors if config.normalise == "none" else of_unit_length(vectors, name)


def of_unit_length(vectors: Vectors, name: Callable[[int], str]) -> Vectors:
    """Each vector divided by its length.

    Args:
        vectors: all of them finite.
        name: what a text is called in messages.

    Raises:
        InputError: a vector of length 0.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if zero := np.flatnonzero(lengths == 0).tolist():
        raise InputError(
            f"{name(zero[0])} has a vector of zeros ({len(zero)} such of {len(vectors)} texts), which has "
            f"no direction; leave normalise at 'none', or choose another method or other layers"
        )
    return (vectors / lengths).astype(np.float32)


def whitening_of(
    config: EmbedConfig,
    vectors: Vectors,
    name: Callable[[int], str],
    train: Int64[np.ndarray, " n_train"] | None,
) -> Whitening | None:
    """The whitening that `config` asks for; None where it asks for none.

    Args:
        config: how many directions are kept.
        vectors: combined over layers and members, not finished.
        name: what a text is called in messages.
        train: which of them it is fitted on; the others do not touch it.

    Raises:
        InputError: a non-finite vector, no training texts, or too few.
    """
    if config.whitening is None:
        return None
    require_finite(vectors, name, _embeddings_of(config))
    if train is None:
        raise InputError(_NOT_FITTED)
    return fit_whitening(config.whitening, vectors[train])


def _embeddings_of(config: EmbedConfig) -> str:
    """By class, as those of a plug-in may be what made them wrong."""
    return f"the embeddings of {type(config.method).__name__}"


def require_finite(
    vectors: Vectors, name: Callable[[int], str], what: str = "the embeddings"
) -> None:
    """Raises: InputError: NaN or infinity in a vector; says how many of `what` and in which text first."""
    broken = ~np.isfinite(vectors)
    if broken.any():
        text = int(broken.any(axis=1).argmax())
        raise InputError(
            f"{what} hold {int(broken.sum())} non-finite numbers, the first in {name(text)}; "
            f"run 'permafrost verify', and extract in a wider type (--dtype float32)"
        )
