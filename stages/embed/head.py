"""The vectors of a trained head."""

import numpy as np
import torch

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import MOST_TEXTS
from permafrost.stages.fit import LoadedHead, to_tensors
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader


def embed_with_head(head: LoadedHead, reader: FeatureReader, progress: Progress) -> Vectors:
    """Pooled vectors of a trained head for every text `[n_texts, d_out]` float32, before its classifier.

    Computed where the head's parameters are.
    """
    device = next((p.device for p in head.parameters()), torch.device("cpu"))
    parts: list[Vectors] = []
    progress.start("embed", reader.n_texts, "texts")
    try:
        with torch.inference_mode():
            for texts, rows in reader.in_order(MOST_TEXTS):
                parts.append(head.embed(*to_tensors(rows, device)).cpu().numpy())
                progress.advance(len(texts))
    finally:
        progress.finish()
    return np.concatenate(parts)
