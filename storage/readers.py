"""Reading one array of a store for an ordered list of texts, for training and evaluation.

The array is held in memory if it fits the budget, else read in windows of segments that are shuffled inside;
both give the same kind of batches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.layout import SPAN, ArraySpec, widen
from permafrost.storage.features.places import Locations
from permafrost.storage.features.shard import ShardRows
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged, offsets_of, ranges

Precision = Literal["float32", "stored"]
Tokens = Literal["span", "all"]

_BLOCK_BYTES = 4 << 20
"""Block size if texts are read in the order of the store; small enough for the processor's cache."""
_SHOWN = 3
"""Texts that a message shows."""
_MOST_OF_A_SHARD = 4
"""A shard is read ahead as a whole if at least one in this many of its rows is needed, for several texts."""

OpenShard = Callable[[int, str], ShardRows]
Batch = tuple[NDArray[np.int64], Ragged]
"""Indices of the texts `[b]`, and their rows `[sum n_tokens, width]`."""


@runtime_checkable
class FeatureReader(Protocol):
    """One array for an ordered list of texts; text i is the i-th text that the reader was opened for."""

    @property
    def array(self) -> str:
        """Name of the array, e.g. `hidden/6`."""
        ...

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        ...

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each text `[n_texts]`."""
        ...

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every text once, in order; raises InputError if a batch has no text."""
        ...

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every text once, in an order of (seed, epoch), and of the windows where there are some."""
        ...

    def subset(self, indices: NDArray[np.int64]) -> "FeatureReader":
        """A reader of these texts only (repeats allowed), numbered from 0 again."""
        ...


def _as(rows: NDArray[Any], logical: str, precision: Precision) -> NDArray[Any]:
    return rows if precision == "stored" else widen(rows, logical)


def _width(rows: NDArray[Any]) -> int:
    return int(rows.shape[1]) if rows.ndim > 1 else 1


def _require_batch_size(size: int) -> None:
    if size < 1:
        raise InputError(f"batch_size is {size}, expected 1 or more texts")


def _split(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    _require_batch_size(batch_size)
    return (order[i : i + batch_size] for i in range(0, len(order), batch_size))


@dataclass(frozen=True)
class InMemoryReader:
    """All texts in memory, in the stored dtype; a batch is a single gather."""

    array: str
    features: Ragged
    logical_dtype: str = "float32"
    precision: Precision = "float32"
    index: NDArray[np.int64] | None = None
    """Which documents of `features` the texts are; None for all of them in order."""

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.features) if self.index is None else len(self.index)

    @property
    def width(self) -> int:
        """Number of columns."""
        return _width(self.features.data)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each text `[n_texts]`."""
        lengths = self.features.lengths
        return lengths if self.index is None else lengths[self.index]

    def _batch(self, texts: NDArray[np.int64]) -> Batch:
        rows = self.features.take(texts if self.index is None else self.index[texts])
        return texts, Ragged(_as(rows.data, self.logical_dtype, self.precision), rows.offsets)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every text once, in order."""
        return (self._batch(texts) for texts in _split(np.arange(self.n_texts), batch_size))

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every text once, in an order that depends on (seed, epoch) alone."""
        order = np.random.default_rng([seed, epoch]).permutation(self.n_texts)
        return (self._batch(texts) for texts in _split(order, batch_size))

    def subset(self, indices: NDArray[np.int64]) -> "InMemoryReader":
        """A reader of these texts only, sharing the memory."""
        return replace(self, index=indices if self.index is None else self.index[indices])


@dataclass(frozen=True)
class WindowedReader:
    """Reads windows of whole segments and shuffles within them; memory is bounded by `budget_bytes`.

    The order of windows and of texts within a window is drawn from (seed, epoch), so an epoch is
    reproducible, but texts of different windows hardly ever share a batch.
    """

    store: FeatureStore
    array: str
    where: Locations
    budget_bytes: int
    precision: Precision = "float32"
    span: Ragged | None = None
    """Which tokens of each text to read, `[n_tokens]` bool; None for all of them."""

    @property
    def _spec(self) -> ArraySpec:
        return self.store.spec(self.array)

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.where.segment)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self._spec.width or 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of rows of each text `[n_texts]`."""
        return self._lengths

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        if self.span is not None:
            return np.diff(offsets_of(self.span.data.astype(np.int64))[self.span.offsets])
        return self._stored_lengths

    @property
    def _stored_lengths(self) -> NDArray[np.int64]:
        on_tokens = self._spec.axis == "token"
        return self.where.n_tokens if on_tokens else np.ones(self.n_texts, np.int64)

    @property
    def _starts(self) -> NDArray[np.int64]:
        return self.where.token_start if self._spec.axis == "token" else self.where.text_row

    def load(self, texts: NDArray[np.int64], opening: OpenShard | None = None) -> Ragged:
        """Rows of `texts`, in that order, in the stored dtype; fastest in the order of the store.

        `opening` opens a shard, given segment and array; by default the store's, which stay open.
        """
        opening = opening or self.store.open_shard
        spec = self._spec
        size = spec.segment_rows(self.store.record.axes)
        offsets = offsets_of(self.lengths[texts])
        tail = () if spec.width is None else (spec.width,)
        out = np.empty((offsets[-1], *tail), dtype=spec.storage)
        owner = self.where.segment[texts]
        firsts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
        for lo, hi in pairwise([*firsts, len(texts)]):
            of_segment, segment = texts[lo:hi], int(owner[lo])
            starts, lengths = self._starts[of_segment], self._stored_lengths[of_segment]
            rows = ranges(starts - segment * size, lengths)
            if self.span is not None:
                rows = rows[self.span.take(of_segment).data]
            shard = opening(segment, self.array)
            if hi - lo > 1 and len(rows) * _MOST_OF_A_SHARD >= size:
                shard.will_need()
            shard.take(rows, out[offsets[lo] : offsets[hi]])
        return Ragged(out, offsets)

    def load_sorted(
        self, texts: NDArray[np.int64], opening: OpenShard | None = None
    ) -> tuple[Ragged, NDArray[np.int64]]:
        """Rows of `texts` in the order of the store, and the index of each text among them.

        Files are thus read front to back, in long runs, whatever the order of the texts.
        """
        order = np.argsort(self._starts[texts], kind="stable")
        index = np.empty_like(order)
        index[order] = np.arange(len(order))
        return self.load(texts[order], opening), index

    def _batches(self, texts: NDArray[np.int64], size: int) -> Iterator[Batch]:
        rows, index = self.load_sorted(texts)
        for part in _split(np.arange(len(texts)), size):
            yield self._batch(texts[part], rows.take(index[part]))

    def _slices(self, texts: NDArray[np.int64], size: int) -> Iterator[Batch]:
        """As `_batches`, for texts in the order of the store, which need no gather."""
        rows = self.load(texts)
        for lo in range(0, len(texts), size):
            offsets = rows.offsets[lo : lo + size + 1]
            data = rows.data[offsets[0] : offsets[-1]]
            yield self._batch(texts[lo : lo + size], Ragged(data, offsets - offsets[0]))

    def _batch(self, texts: NDArray[np.int64], rows: Ragged) -> Batch:
        return texts, Ragged(_as(rows.data, self._spec.dtype, self.precision), rows.offsets)

    def _row_bytes(self) -> NDArray[np.int64]:
        return self.lengths * self._spec.row_bytes

    def _will_need(self, segments: Sequence[int]) -> None:
        size = self._spec.segment_rows(self.store.record.axes)
        for segment in segments:
            n_texts, n_rows = self._by_segment[segment]
            if n_texts > 1 and n_rows * _MOST_OF_A_SHARD >= size:
                self.store.open_shard(segment, self.array).will_need()

    @cached_property
    def _by_segment(self) -> dict[int, tuple[int, int]]:
        """Texts and rows of each segment."""
        segments, index, n_texts = np.unique(
            self.where.segment, return_inverse=True, return_counts=True
        )
        n_rows = np.bincount(index, self._stored_lengths).astype(np.int64)
        pairs = zip(n_texts.tolist(), n_rows.tolist(), strict=True)
        return dict(zip(segments.tolist(), pairs, strict=True))

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every text once, in order; loads as many batches at a time as the budget allows."""
        _require_batch_size(batch_size)
        # Rows are numbered over the whole axis, so if they only increase, files are read sequentially.
        sequential = bool(np.all(np.diff(self._starts) > 0))
        at_a_time = min(self.budget_bytes, _BLOCK_BYTES) if sequential else self.budget_bytes
        ends = np.cumsum(self._row_bytes())
        segments = np.unique(self.where.segment)
        which = np.searchsorted(segments, self.where.segment)
        hinted = 0
        at = 0
        while at < self.n_texts:
            used = ends[at - 1] if at else 0
            stop = int(np.searchsorted(ends, used + at_a_time, side="right"))
            stop = min(
                max(at + (stop - at) // batch_size * batch_size, at + batch_size), self.n_texts
            )
            if sequential:
                # Read ahead by one segment.
                needed = int(which[stop - 1]) + 2
                self._will_need(segments[hinted:needed].tolist())
                hinted = max(hinted, needed)
                yield from self._slices(np.arange(at, stop), batch_size)
            else:
                yield from self._batches(np.arange(at, stop), batch_size)
            at = stop

    def _windows(self, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Texts of segments in random order, with as many segments per window as fit the budget."""
        by_segment = np.argsort(self.where.segment, kind="stable")
        firsts = np.flatnonzero(np.diff(self.where.segment[by_segment], prepend=-1))
        bounds = [*firsts.tolist(), len(by_segment)]
        row_bytes = self._row_bytes()
        groups: list[list[NDArray[np.int64]]] = []
        used = 0
        for k in rng.permutation(len(firsts)).tolist():
            texts = by_segment[bounds[k] : bounds[k + 1]]
            need = int(row_bytes[texts].sum())
            if not groups or used + need > self.budget_bytes:
                groups.append([])
                used = 0
            groups[-1].append(texts)
            used += need
        return [np.concatenate(group) for group in groups]

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every text once, in an order of (seed, epoch) and of the segments that fit the budget together."""
        _require_batch_size(batch_size)
        rng = np.random.default_rng([seed, epoch])
        windows = self._windows(rng)
        left = np.empty(0, np.int64)
        for i, window in enumerate(windows):
            texts = rng.permutation(np.concatenate([left, window]))
            # Texts that do not fill a batch move to the next window, so only the last batch is short.
            is_last = i == len(windows) - 1
            keep = len(texts) if is_last else len(texts) // batch_size * batch_size
            texts, left = texts[:keep], texts[keep:]
            for n, batch in enumerate(self._batches(texts, batch_size)):
                if n == 0 and not is_last:
                    # Let the disk read the next window while this one is used.
                    self._will_need(np.unique(self.where.segment[windows[i + 1]]).tolist())
                yield batch

    def subset(self, indices: NDArray[np.int64]) -> "WindowedReader":
        """A reader of these texts only."""
        w = self.where
        picked = Locations(*(getattr(w, f.name)[indices] for f in fields(w)))
        span = None if self.span is None else self.span.take(indices)
        return replace(self, where=picked, span=span)


def read_rows(store: FeatureStore, segment: int, array: str, start: int, stop: int) -> NDArray[Any]:
    """Rows `[start, stop)` of a cell, counted from the segment's first, in the stored dtype.

    Each chunk's checksum is verified against the receipt before its rows are returned.

    Raises:
        CorruptDataError: a checksum does not match.
        NotFoundError: the cell is not committed.
    """
    return store.open_shard(segment, array).read(start, stop)


def _first_of(
    indices: NDArray[np.int64], digests: Sequence[str], texts: Sequence[str] | None
) -> str:
    """The first of some texts, or where only their digests are known those."""
    first = indices[:_SHOWN].tolist()
    more = ", ..." if len(indices) > _SHOWN else ""
    if texts is None:
        return "those with the digests " + ", ".join(digests[int(i)][:12] for i in first) + more
    return ", ".join(f"text {i} {quoted(texts[i])}" for i in first) + more


def open_reader(
    store: FeatureStore,
    array: str,
    digests: Sequence[str],
    *,
    budget_bytes: int,
    precision: Precision = "float32",
    tokens: Tokens = "span",
    texts: Sequence[str] | None = None,
) -> InMemoryReader | WindowedReader:
    """A reader of `array` for the texts with these digests, in that order.

    Args:
        store: where the features are.
        array: for example `hidden/6`.
        digests: content digests of the texts; repeats are allowed.
        budget_bytes: whole in memory up to this many bytes, windows of at most this size beyond.
        precision: batches in float32, or in the stored dtype (bfloat16 as its uint16 bits).
        tokens: `span` gives the tokens that poolings run over under the store's recipe; `all` gives
            every token of the input. Text-axis arrays have one row per text either way.
        texts: those with the digests, which a message shows.

    Raises:
        NotFoundError: a text or its cell is not in the store.
        InputError: there are no such tokens.
    """
    if tokens not in get_args(Tokens):
        raise InputError(f"tokens is {quoted(tokens)}, expected 'span' or 'all'")
    where = store.locate(digests)
    unknown = np.flatnonzero(where.segment < 0)
    if len(unknown):
        raise NotFoundError(
            f"{len(unknown):,} of {len(digests):,} texts are not in store {store.store_id[:12]}: "
            f"{_first_of(unknown, digests, texts)}; extract them first"
        )
    there = store.committed_in(np.unique(where.segment).tolist())
    wanted = {array, SPAN.name} if store.spec(array).axis == "token" else {array}
    if not all(wanted <= arrays for arrays in there.values()):
        # Another segment that a text is in may have them.
        where = store.locate(digests, sorted(wanted))
        there = store.committed_in(np.unique(where.segment).tolist())
    holes = [segment for segment, arrays in there.items() if array not in arrays]
    if holes:
        have = ", ".join(sorted(there[holes[0]])) or "nothing"
        raise NotFoundError(
            f"{array} is missing in {len(holes)} segments of the store {store.store_id[:12]} (segment "
            f"{holes[0]} has {have}); extract it first"
        )
    reader = WindowedReader(store, array, where, budget_bytes, precision)
    spec = store.spec(array)
    if tokens == "span" and spec.axis == "token":
        rows, index = replace(reader, array=SPAN.name).load_sorted(np.arange(len(digests)))
        if not rows.data.all():
            reader = replace(reader, span=rows.take(index))
    if int((reader.lengths * spec.row_bytes).sum()) > budget_bytes:
        return reader
    # Each shard is closed once its rows are copied: pages of an open map count towards the process's memory,
    # which would then hold the features twice.
    rows, index = reader.load_sorted(np.arange(len(digests)), store.reopen_shard)
    return InMemoryReader(array, rows, spec.dtype, precision, index)
