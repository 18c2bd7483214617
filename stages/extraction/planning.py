"""What an extraction would compute and write, predicted before anything is loaded or written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from permafrost.stages.extraction.lengths import KnownLengths
from permafrost.stages.extraction.recipes.inputs import numbered_as
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.features.layout import SPAN, TOKEN_IDS, array_spec, choose_axes
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import FeatureStore, store_folder

DISK_MARGIN = 64 << 20
"""Bytes that stay free beyond what an extraction is predicted to write."""
_AT_A_TIME = 1 << 16
"""Texts looked up together."""

SAMPLE_TEXTS = 2_000
"""Texts tokenised to estimate the tokens of a corpus; smaller corpora are counted exactly, but for texts much
longer than the input."""


@dataclass(frozen=True)
class ExtractionPlan:
    """What is missing and what it will cost."""

    store_id: str
    n_texts: int
    n_new_texts: int
    n_tokens: int
    """Tokens that go through the backbone; for new texts an estimate unless `exact`."""
    exact: bool
    cells: dict[int, tuple[str, ...]]
    """Missing arrays of segments that exist already."""
    bytes_per_array: dict[str, int]
    """Bytes that will be written, by array."""
    n_cut: int = 0
    """New texts that are longer than the input and lose their end; an estimate for more than SAMPLE_TEXTS."""

    @property
    def n_bytes(self) -> int:
        """Bytes that will be written."""
        return sum(self.bytes_per_array.values())

    @property
    def nothing_to_do(self) -> bool:
        """Whether every cell is stored already."""
        return not self.cells and not self.n_new_texts

    def cut_text(self) -> str:
        """The end of a sentence on texts that are too long; empty if there are none."""
        if not self.n_cut:
            return ""
        about = "about " if self.n_new_texts > SAMPLE_TEXTS else ""
        told = "text is longer than max_length and loses its"
        if self.n_cut > 1:
            told = "texts are longer than max_length and lose their"
        return f"; {about}{self.n_cut:,} new {told} end"


def finished_plan(
    target: ExtractTarget, home: Path, digests: Iterable[Sequence[str]]
) -> ExtractionPlan | None:
    """The plan of an extraction of which every cell is stored; None if anything is missing. Needs no texts.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        digests: of the texts, in blocks.
    """
    root = store_folder(home, target.identity.store_id)
    if not has_record(root):
        return None
    store = FeatureStore.open(root, expect=target.identity)
    segments, n_texts = set[int](), 0
    for block in digests:
        segment = store.locate(block).segment
        if (segment < 0).any():
            return None
        segments.update(np.unique(segment).tolist())
        n_texts += len(block)
    if store.missing_cells(sorted(segments), target.arrays):
        return None
    return ExtractionPlan(target.identity.store_id, n_texts, 0, 0, True, {}, {})


def plan_extraction(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    digests: Sequence[str],
    known: KnownLengths | None = None,
) -> ExtractionPlan:
    """Predict an extraction of `texts` (unique, with their digests) into the store under `home`.

    Reads the store's index and tokenises at most SAMPLE_TEXTS texts, of long ones the beginning; writes
    nothing. `known` has the lengths of texts of other plans.
    """
    root = store_folder(home, target.identity.store_id)
    is_new, cells, old_rows = np.ones(len(texts), np.bool_), {}, {}
    if has_record(root):
        store = FeatureStore.open(root, expect=target.identity)
        segments = set[int]()
        for at in range(0, len(texts), _AT_A_TIME):
            block = slice(at, at + _AT_A_TIME)
            segment = store.locate(digests[block]).segment
            is_new[block] = segment < 0
            segments.update(np.unique(segment[segment >= 0]).tolist())
        cells = store.missing_cells(sorted(segments), target.arrays)
        # Keep the sizes only: segment tables hold all texts.
        old_rows = {s: {a: store.segment(s).rows(a) for a in ("token", "text")} for s in cells}
    n_new = int(is_new.sum())
    exact = n_new <= SAMPLE_TEXTS
    sample = np.flatnonzero(is_new)
    if n_new > SAMPLE_TEXTS:
        sample = np.random.default_rng(0).choice(sample, SAMPLE_TEXTS, replace=False)
    new_tokens = n_cut = 0
    if n_new:
        # Lengths only: the tokens of all texts together would set the peak memory of a short extraction.
        rows = sample.tolist()
        lengths = KnownLengths() if known is None else known
        with numbered_as(rows):
            total = lengths.total(target, [texts[i] for i in rows], [digests[i] for i in rows])
        exact = exact and total.exact
        new_tokens, n_cut = (round(n * n_new / len(rows)) for n in (total.n_tokens, total.n_cut))
    specs = {a: _row_bytes(target, a) for a in (TOKEN_IDS.name, SPAN.name, *target.arrays)}
    bytes_per_array = dict.fromkeys(specs, 0)
    for array, (axis, row_bytes, chunk_bytes) in specs.items():
        if n_new:
            rows = new_tokens if axis == "token" else n_new
            bytes_per_array[array] += rows * row_bytes + chunk_bytes
        for segment, names in cells.items():
            if array in names:
                bytes_per_array[array] += old_rows[segment][axis] * row_bytes + chunk_bytes
    return ExtractionPlan(
        store_id=target.identity.store_id,
        n_texts=len(texts),
        n_new_texts=n_new,
        n_tokens=new_tokens + sum(old_rows[s]["token"] for s in cells),
        exact=exact,
        cells=cells,
        bytes_per_array={a: n for a, n in bytes_per_array.items() if n},
        n_cut=n_cut,
    )


def _row_bytes(target: ExtractTarget, array: str) -> tuple[str, int, int]:
    """Axis, bytes per row, and the bytes that rounding up to whole inner chunks may add."""
    axes = choose_axes(target.sizes.d_model, target.identity.storage_dtype, target.max_length)
    spec = array_spec(array, target.store_sizes, target.identity.storage_dtype)
    return spec.axis, spec.row_bytes, spec.chunk_rows(axes) * spec.row_bytes
