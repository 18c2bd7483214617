"""What an extraction would compute and write, predicted before anything is loaded or written."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from permafrost.stages.extraction.lengths import KnownLengths
from permafrost.stages.extraction.recipes.inputs import numbered_as
from permafrost.stages.extraction.target import BLOCK_TEXTS, ExtractTarget
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.layout import Axes, array_spec, choose_axes
from permafrost.storage.features.record import has_record
from permafrost.storage.features.segments import pack
from permafrost.storage.features.shard import uncompressed_bytes
from permafrost.storage.features.store import ALWAYS, DERIVED, FeatureStore, store_folder

_Rows = dict[str, int]
"""Of a segment, by axis."""

DISK_MARGIN = 64 << 20
"""Bytes that stay free beyond what an extraction is predicted to write."""
_AT_A_TIME = 1 << 16
"""Texts looked up together."""

SAMPLE_TEXTS = 2_000
"""Texts tokenised to estimate the tokens of a corpus; smaller corpora are counted exactly, but for texts much
longer than the input."""


def bytes_needed(n_bytes: int) -> int:
    """Bytes that have to be free before so many are written."""
    return n_bytes + DISK_MARGIN if n_bytes else 0


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
    """Bytes of the shards that will be written, by array: to the byte if `exact` and not compressed. Tables
    of texts, receipts, and the output projections beside attention rows come on top."""
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
    segments, n_texts, wanted = set[int](), 0, (*ALWAYS, *target.arrays)
    for block in digests:
        segment = store.locate(block, wanted).segment
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
    *,
    axes: Axes | None = None,
    block_texts: int = BLOCK_TEXTS,
) -> ExtractionPlan:
    """Predict an extraction of `texts` (unique, with their digests) into the store under `home`.

    Reads the store's index and tokenises at most SAMPLE_TEXTS texts, of long ones the beginning; writes
    nothing. `known` has the lengths of texts of other plans, `axes` the segment sizes of a new store if they
    are not chosen from the width; `block_texts` texts are packed at a time.
    """
    root = store_folder(home, target.identity.store_id)
    is_new, cells, underived = np.ones(len(texts), np.bool_), {}, []
    old_rows: dict[int, _Rows] = {}
    axes = axes or choose_axes(
        target.sizes.d_model, target.identity.storage_dtype, target.max_length
    )
    if has_record(root):
        store = FeatureStore.open(root, expect=target.identity)
        segments, wanted = set[int](), (*ALWAYS, *target.arrays)
        for at in range(0, len(texts), _AT_A_TIME):
            block = slice(at, at + _AT_A_TIME)
            segment = store.locate(digests[block], wanted).segment
            is_new[block] = segment < 0
            segments.update(np.unique(segment[segment >= 0]).tolist())
        cells = store.missing_cells(sorted(segments), target.arrays)
        # Keep the sizes only: segment tables hold all texts.
        old_rows = {s: _rows(store, s) for s in cells}
        axes = store.record.axes
        if cells or is_new.any():
            underived = _underived(store)
    n_new = int(is_new.sum())
    exact = n_new <= SAMPLE_TEXTS
    sample = np.flatnonzero(is_new)
    if n_new > SAMPLE_TEXTS:
        sample = np.random.default_rng(0).choice(sample, SAMPLE_TEXTS, replace=False)
    new_tokens = n_cut = 0
    new_rows: list[_Rows] = []
    if n_new:
        # Lengths only: the tokens of all texts together would set the peak memory of a short extraction.
        rows = sample.tolist()
        lengths = KnownLengths() if known is None else known
        with numbered_as(rows):
            total = lengths.total(target, [texts[i] for i in rows], [digests[i] for i in rows])
        exact = exact and total.exact
        new_tokens, n_cut = (round(n * n_new / len(rows)) for n in (total.n_tokens, total.n_cut))
        new_rows = _packed(is_new, np.array(total.lengths), axes, block_texts)
    bytes_per_array: dict[str, int] = {}
    for array in (*ALWAYS, *DERIVED, *target.arrays):
        old = (rows for s, rows in old_rows.items() if array in cells[s])
        written = [*new_rows, *(underived if array in DERIVED else old)]
        bytes_per_array[array] = _shard_bytes(target, array, axes, written)
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


def _rows(store: FeatureStore, segment: int) -> _Rows:
    found = store.segment(segment)
    return {axis: found.rows(axis) for axis in ("token", "text")}


def _underived(store: FeatureStore) -> list[_Rows]:
    """Rows of the segments that lack what follows from their tables; whoever writes to the store adds it."""
    found: list[_Rows] = []
    for number, there in store.committed_in(store.tables()).items():
        if not there.issuperset(DERIVED):
            with contextlib.suppress(CorruptDataError):  # the writer passes over it as well
                found.append(_rows(store, number))
    return [rows for rows in found if rows["token"]]


def _packed(
    is_new: Bool[np.ndarray, " n"], lengths: Int64[np.ndarray, " k"], axes: Axes, block_texts: int
) -> list[_Rows]:
    """Rows of the segments that new texts come to; where `lengths` are of a sample, each block of texts is
    taken to have lengths like it."""
    in_order, spread = len(lengths) == is_new.sum(), np.sort(lengths)

    @cache
    def like_the_sample(n: int) -> list[_Rows]:
        return _segments(spread[(np.arange(n) * len(spread)) // n], axes)

    rows, done = list[_Rows](), 0
    for at in range(0, len(is_new), block_texts):
        if n := int(is_new[at : at + block_texts].sum()):
            mine = lengths[done : done + n]
            rows += _segments(mine, axes) if in_order else like_the_sample(n)
            done += n
    return rows


def _segments(lengths: Int64[np.ndarray, " n"], axes: Axes) -> list[_Rows]:
    packed = pack(lengths, axes)
    return [{"token": int(lengths[some].sum()), "text": len(some)} for some in packed]


def _shard_bytes(target: ExtractTarget, array: str, axes: Axes, segments: Iterable[_Rows]) -> int:
    spec = array_spec(array, target.store_sizes, target.identity.storage_dtype)
    chunk_rows, shard_rows = spec.chunk_rows(axes), spec.segment_rows(axes)
    return sum(
        uncompressed_bytes(rows[spec.axis], spec.row_bytes, chunk_rows, shard_rows)
        for rows in segments
    )
