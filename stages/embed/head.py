"""The vectors of a trained head, and what its answers are made of."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import MOST_TEXTS
from permafrost.stages.fit.sources import to_tensors
from permafrost.stages.fit.trained import LoadedHead
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader


def embed_with_head(head: LoadedHead, reader: FeatureReader, progress: Progress) -> Vectors:
    """Pooled vectors of a trained head for every text `[n_texts, d_out]` float32, before its classifier.

    Computed where the head's parameters are.
    """
    return _with_head(head, head.embed, reader, progress)


def encode_with_head(head: LoadedHead, reader: FeatureReader, progress: Progress) -> Vectors:
    """All that a trained head needs of every text for its answers `[n_texts, width]` float32: of single texts
    with classes their logits, else a vector. Computed where the head's parameters are."""
    return _with_head(head, head.model, reader, progress)


def _with_head(
    head: LoadedHead,
    compute: Callable[[Tensor, Tensor], Tensor],
    reader: FeatureReader,
    progress: Progress,
) -> Vectors:
    device = next((p.device for p in head.parameters()), torch.device("cpu"))
    parts: list[Vectors] = []
    progress.start("embed", reader.n_texts, "texts")
    try:
        with torch.inference_mode():
            for texts, rows in reader.in_order(MOST_TEXTS):
                parts.append(compute(*to_tensors(rows, device)).cpu().numpy())
                progress.advance(len(texts))
    finally:
        progress.finish()
    return np.concatenate(parts)
