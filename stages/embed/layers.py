"""One vector per text from every layer, in one pass over each stored array, and layers combined."""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int64

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import as_vectors
from permafrost.stages.embed.config import (
    Combine,
    EmbedConfig,
    layers_of,
    require_definite,
)
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.finish import finish, whitening_of
from permafrost.stages.extraction.capture import Index
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


def layer_vectors(
    config: EmbedConfig, features: Features, progress: Progress
) -> Iterator[tuple[Index, Vectors]]:
    """The layers of `config` in ascending order, each with its vectors; reads one layer at a time.

    Raises:
        InputError: a layer that the backbone does not have, a text whose span is empty, or vectors of another
            shape than the method says.
    """
    layers = layers_of(config, features.sizes)
    progress.start("embed", features.n_texts * len(layers), "texts")
    method, of = config.method, config.of
    shape = features.n_texts, method.width(of, features.sizes)
    try:
        for layer in layers:
            vectors = method.vectors(of, layer, features, progress)
            yield layer, as_vectors(vectors, shape, f"{type(method).__name__}.vectors")
    finally:
        progress.finish()


def embed_layers(
    config: EmbedConfig, features: Features, progress: Progress
) -> dict[Index, Vectors]:
    """As `layer_vectors`, all at once: `[n_texts, width]` per layer, for sweeps and `choose_layers`."""
    return dict(layer_vectors(config, features, progress))


def combine_vectors(parts: Iterable[Vectors], combine: Combine) -> Vectors:
    """Average the parts, or put them side by side in their order.

    Raises:
        InputError: no parts, another number of texts, or an average of different widths.
    """
    if combine == "concatenate":
        return np.concatenate(list(_alike(parts, slice(1))), axis=1)
    total, n = np.zeros((), dtype=np.float64), 0
    for part in _alike(parts, slice(2)):
        total, n = total + part, n + 1
    return (total / n).astype(np.float32)


def embed_ensemble(prompts: Iterable[Vectors], combine: Combine) -> Vectors:
    """Combine a text's vectors under several prompts; MetaEOL averages them."""
    return combine_vectors(prompts, combine)


def combined_layers(config: EmbedConfig, features: Features, progress: Progress) -> Vectors:
    """Vectors of all layers combined, neither whitened nor normalised: what an ensemble is made from.

    `aligned_wva` projects each layer before the average: a mean over layers with different output
    projections cannot be projected afterwards.

    Raises:
        InputError: the layers are still to be chosen, or the backbone does not have them.
    """
    require_definite(config)
    return combine_vectors(
        (v for _, v in layer_vectors(config, features, progress)), config.combine
    )


def embed(
    config: EmbedConfig,
    features: Features,
    progress: Progress,
    *,
    train: Int64[np.ndarray, " n_train"] | None = None,
) -> Vectors:
    """One vector per text `[n_texts, width]` float32, in the order of `features`.

    Args:
        config: method, layers, combination, finishing.
        features: rows of the texts.
        progress: told the texts done.
        train: which texts whitening is fitted on.

    Raises:
        InputError: layers that are not there, non-finite vectors, whitening without training texts, or a
            vector without length where lengths are normalised.
    """
    vectors = combined_layers(config, features, progress)
    whitening = whitening_of(config, vectors, features.name, train)
    return finish(config, vectors, features.name, whitening=whitening)


def _alike(parts: Iterable[Vectors], axes: slice) -> Iterator[Vectors]:
    first = None
    for i, part in enumerate(parts):
        first = first or part.shape
        if part.shape[axes] != first[axes]:
            raise InputError(
                f"part {i} (a layer or a prompt) has vectors {list(part.shape)}, the first has "
                f"{list(first)}; an average needs the same number of texts and the same width, "
                f"concatenation the same number of texts"
            )
        yield part
    if first is None:
        raise InputError("there is nothing to combine; give at least one layer or prompt")
