"""Recomputing stored data: a spot check with a stated tolerance, and the cells that a repair dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.extract import recompute_cells
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget, target_of_store
from permafrost.stages.extraction.token_budget import batch_tokens
from permafrost.storage.adapted_stores import backbone_of_store
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.features.due import note_due, read_due
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.repairing import Mended
from permafrost.storage.features.store import ALWAYS, DERIVED, FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import Progress
from permafrost.storage.readers import open_reader

STORAGE_ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half a unit in the last place, relative: what rounding to the storage dtype alone may change."""
COMPUTE_NOISE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
"""Relative change that a different batch, kernel or number of threads may cause."""


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
    (record,) = store.segment(segment).table.slice(row, 1).to_pylist()
    text, digest = record["text"], record["digest"]
    encoded = target.encoded([text])
    names = sorted(store.committed(segment).difference(DERIVED))
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


def compute_again(mended: Mended, source: str | None, progress: Progress) -> str:
    """Compute the cells and projections that `mended` lacks; returns a description of what was done.

    Batches are formed as in an extraction of all arrays of the store at once. If the original extraction was
    one, on the same kind of machine and with the same number of threads, the bytes are identical; otherwise
    numbers differ within the tolerance of `verify --recompute`. The description says which.

    Args:
        mended: from `storage.features.repairing.mend`.
        source: where the backbone is now; None if it has not moved.
        progress: receives the number of tokens done.

    Raises:
        IdentityMismatchError: the backbone found there is not the one the store was made with.
    """
    store = mended.store
    arrays = sorted({*store.arrays(), *(a for names in mended.cells.values() for a in names)})
    target = target_of_store(store.record, tuple(arrays), backbone_of_store(store, source))
    runtime = ExtractRuntime()
    backbone = load_backbone(target.files, target.identity.compute_dtype, runtime.device)
    captured = [a for a in arrays if a not in ALWAYS]
    budget = batch_tokens(target, captured, runtime, backbone.device)
    done: list[str] = []
    if mended.cells:
        tokens = recompute_cells(
            store,
            target,
            mended.cells,
            runtime.model_copy(update={"batch_tokens": budget}),
            progress,
            load=lambda: backbone,
        )
        n_cells = sum(map(len, mended.cells.values()))
        done.append(f"{n_cells} cell(s) computed again ({tokens:,} tokens){_compared(mended)}")
    with writing(store) as writer:
        for block in mended.projections:
            write_projection(
                store, block, *output_projection(backbone, block), writer.require_lease
            )
        writer.require_lease()
        note_due(store, read_due(store))
    if mended.projections:
        done.append(f"{len(mended.projections)} output projection(s) stored again")
    return "; ".join(done)


def _compared(mended: Mended) -> str:
    """How many cells have the bytes that they had, as far as that is known."""
    cells = [(segment, array) for segment, arrays in mended.cells.items() for array in arrays]
    known = [cell for cell in cells if cell in mended.receipts]
    said = f", {_n_exact(mended, known)} of them byte for byte as before" if known else ""
    if n_unknown := len(cells) - len(known):
        said += f"; {n_unknown} cannot be compared, as no receipt is left of what was there"
    return said


def _n_exact(mended: Mended, cells: Sequence[tuple[int, str]]) -> int:
    store, exact = mended.store, 0
    for segment, array in cells:
        try:
            seal = read_receipt(store.root, segment, array).seal
        except CorruptDataError:
            continue
        exact += seal == mended.receipts[segment, array].seal
    return exact
