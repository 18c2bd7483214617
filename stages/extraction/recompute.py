"""Does the stored data still equal what the backbone computes? A spot check with a stated tolerance."""

from dataclasses import dataclass

import numpy as np
import torch

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import ALWAYS, FeatureStore
from permafrost.storage.progress import Progress
from permafrost.storage.readers import open_reader

STORAGE_ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half a unit in the last place, relative: what rounding to the storage dtype alone may change."""
COMPUTE_NOISE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
"""What another batch, kernel or thread count may change in computing, relative to a row's size."""


@dataclass(frozen=True)
class Recomputed:
    """Largest difference found in one array."""

    array: str
    difference: float
    """max |stored - recomputed| / (|recomputed| + RMS of the array)."""
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Within the tolerance."""
        return self.difference <= self.tolerance


def recompute(
    store: FeatureStore,
    target: ExtractTarget,
    backbone: Backbone,
    n_texts: int,
    seed: int,
    progress: Progress,
) -> list[Recomputed]:
    """Run `n_texts` random stored texts through the backbone, one by one, and compare every array.

    One text is one batch here, so this also measures whether batching and padding mattered when the
    store was made. The tolerance is the storage dtype's rounding plus the compute dtype's noise.

    Raises:
        InputError: the store is empty.
    """
    pairs = [
        (s, i)
        for s in store.segments()
        if store.committed(s)
        for i in range(store.segment(s).n_texts)
    ]
    if not pairs:
        raise InputError(f"the store {store.store_id[:12]} holds no committed text to compare")
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(pairs), min(n_texts, len(pairs)), replace=False)
    identity = store.record.identity
    tolerance = STORAGE_ROUNDING[identity.storage_dtype] + COMPUTE_NOISE[identity.compute_dtype]
    worst: dict[str, float] = {}
    progress.start("recompute", len(chosen), "texts")
    try:
        for at in chosen.tolist():
            segment, row = pairs[at]
            for array, difference in _compare_text(store, target, backbone, segment, row).items():
                worst[array] = max(worst.get(array, 0.0), difference)
            progress.advance(1)
    finally:
        progress.finish()
    return [Recomputed(a, d, 0.0 if a in ALWAYS else tolerance) for a, d in sorted(worst.items())]


def _compare_text(
    store: FeatureStore, target: ExtractTarget, backbone: Backbone, segment: int, row: int
) -> dict[str, float]:
    (found,) = store.segment(segment).table.slice(row, 1).to_pylist()
    text, digest = found["text"], found["digest"]
    encoded = encode(target.recipe, target.tokenizer, [text], target.max_length)
    names = sorted(store.committed(segment))
    captured = [a for a in names if a not in ALWAYS]
    fresh = dict[str, np.ndarray]()
    if captured:
        outputs = forward(backbone, encoded, captured, target.recipe)
        fresh = {a: t.to(torch.float32).cpu().numpy() for a, t in outputs.items()}
    fresh |= {"token_ids": encoded.token_ids.data, "span": encoded.span.data}
    out: dict[str, float] = {}
    for array in names:
        reader = open_reader(store, array, [digest], budget_bytes=1 << 30, tokens="all")
        _, rows = next(reader.in_order(1))
        stored, now = rows.data.astype(np.float64), fresh[array].astype(np.float64)
        if stored.shape != now.shape:
            out[array] = float("inf")
            continue
        scale = np.abs(now) + np.sqrt(np.mean(now * now)) + np.finfo(np.float32).tiny
        out[array] = float(np.max(np.abs(stored - now) / scale))
    return out
