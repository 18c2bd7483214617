"""Locating texts by content digest, with digests as bytes, sorted once per segment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

PLACE = ("digest", "n_tokens", "token_start", "text_row", "truncated")
"""Columns of a segment's table that `Places` reads."""

MERGED_TEXTS = 1 << 18
"""Runs are merged up to this many texts, which bounds the memory of merging."""

_AT_A_TIME = 1 << 15
"""Digests looked up at a time."""

_HEX_DIGITS = 64
_NO_DIGIT = 255
_VALUE_OF_CODE = np.full(256, _NO_DIGIT, np.uint8)
_VALUE_OF_CODE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


@dataclass(frozen=True)
class Locations:
    """The locations of texts, `[n]` each; `segment` is -1 for a text that is not in the store."""

    segment: NDArray[np.int64]
    token_start: NDArray[np.int64]
    n_tokens: NDArray[np.int64]
    text_row: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    """Whether a text is stored truncated; False for a text that is not stored."""

    def replace(self, at: NDArray[np.int64], others: "Locations") -> None:
        """Write the locations of the texts `at [m]` over, of those that `others [m]` has."""
        hit = others.segment >= 0
        for f in fields(self):
            getattr(self, f.name)[at[hit]] = getattr(others, f.name)[hit]


@dataclass(frozen=True)
class _Run:
    """The texts of some segments, sorted by digest; equal digests are in the order in which they were
    added."""

    head: NDArray[np.uint64]
    """The first eight bytes of each digest `[n]`, ascending."""
    tail: NDArray[np.uint64]
    """The other 24 bytes `[n, 3]`; a text is found only if all of them agree."""
    segment: NDArray[np.int32]
    token_start: NDArray[np.int64]
    n_tokens: NDArray[np.int32]
    text_row: NDArray[np.int64]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.head)

    @classmethod
    def of(cls, number: int, table: pa.Table) -> "_Run":
        """The texts of one segment."""
        words, usable = _words(table.column("digest").combine_chunks())
        words = words[usable]
        columns = {n: table.column(n).to_numpy(zero_copy_only=False)[usable] for n in PLACE[1:]}
        segment = np.full(len(words), number, np.int32)
        return cls(words[:, 0], words[:, 1:], segment, **columns)._sorted()

    def merged(self, later: "_Run") -> "_Run":
        """These texts and those of `later`."""
        pairs = ((getattr(self, f.name), getattr(later, f.name)) for f in fields(self))
        return _Run(*(np.concatenate(pair) for pair in pairs))._sorted()

    def only(self, which: NDArray[np.bool_]) -> "_Run":
        """Some of these texts."""
        return _Run(*(getattr(self, f.name)[which] for f in fields(self)))

    def _sorted(self) -> "_Run":
        order = np.argsort(self.head, kind="stable")
        return _Run(*(getattr(self, f.name)[order] for f in fields(self)))

    def rows(
        self, words: NDArray[np.uint64], among: Sequence[int] | None = None
    ) -> NDArray[np.int64]:
        """The first row of each digest `[n, 4]`, or the first in one of some segments; -1 for those that
        have none in the run."""
        rows = np.full(len(words), -1, np.int64)
        at = np.searchsorted(self.head, words[:, 0])
        pending = np.flatnonzero(at < len(self))
        while len(pending):
            here = at[pending]
            same = self.head[here] == words[pending, 0]
            pending, here = pending[same], here[same]
            hit = (self.tail[here] == words[pending, 1:]).all(1)
            if among is not None:
                hit &= np.isin(self.segment[here], among)
            rows[pending[hit]] = here[hit]
            # Another digest may begin with the same eight bytes, or the digest come again.
            pending = pending[~hit]
            at[pending] += 1
            pending = pending[at[pending] < len(self)]
        return rows

    def segments_with(self, words: NDArray[np.uint64]) -> set[int]:
        """The numbers of all segments that any of the digests `[n, 4]` is in."""
        low = np.searchsorted(self.head, words[:, 0])
        high = np.searchsorted(self.head, words[:, 0], "right")
        of = np.repeat(np.arange(len(words)), high - low)
        first = np.cumsum(high - low) - (high - low)
        rows = np.arange(len(of)) - first[of] + low[of]
        same = (self.tail[rows] == words[of, 1:]).all(1)
        return set(np.unique(self.segment[rows[same]]).tolist())


@dataclass(frozen=True)
class Places:
    """The locations of the texts of some segments, about 57 bytes per text.

    If several segments hold a digest, or one segment several times, the first location counts, in the order
    of the segments, of those that are asked for. Immutable: adding a segment returns a new object.
    """

    segments: tuple[int, ...] = ()
    """Numbers of the segments, in the order in which they were added."""
    runs: tuple[_Run, ...] = ()

    def adding(self, number: int, table: pa.Table) -> "Places":
        """A copy with the texts of one more segment.

        Args:
            number: of the segment.
            table: has the columns PLACE. Digests that are not 64 lower-case hex digits are skipped, as no
            text
                has them.
        """
        runs = [*self.runs, _Run.of(number, table)]
        while len(runs) > 1 and _worth_merging(*runs[-2:]):
            later = runs.pop()
            runs.append(runs.pop().merged(later))
        return Places((*self.segments, number), tuple(runs))

    def first(self, n: int) -> "Places":
        """The places in the first `n` segments only."""
        last = self.segments[n - 1] if n else -1
        runs = (run.only(run.segment <= last) for run in self.runs)
        return Places(self.segments[:n], tuple(run for run in runs if len(run)))

    def packed(self) -> dict[str, NDArray[Any]]:
        """All but the numbers of the segments as arrays, for `unpacked`."""
        columns = {f.name: [getattr(run, f.name) for run in self.runs] for f in fields(_Run)}
        return {
            "runs": np.array([len(run) for run in self.runs], np.int64),
            **{name: np.concatenate(parts) for name, parts in columns.items() if parts},
        }

    @classmethod
    def packed_names(cls) -> frozenset[str]:
        """Names of the arrays that `packed` makes of anything at all."""
        return frozenset({"runs", *(f.name for f in fields(_Run))})

    @classmethod
    def unpacked(cls, segments: tuple[int, ...], arrays: Mapping[str, NDArray[Any]]) -> "Places":
        """The inverse of `packed`. Raises: KeyError: an array is not there."""
        ends = np.cumsum(arrays["runs"]).tolist()
        parts = (slice(a, b) for a, b in pairwise([0, *ends]))
        runs = (_Run(*(arrays[f.name][part] for f in fields(_Run))) for part in parts)
        return cls(segments, tuple(runs))

    def find(self, digests: Sequence[str], among: Sequence[int] | None = None) -> Locations:
        """The locations of the texts with these digests, in any segment or only in some."""
        n = len(digests)
        start, length, row = np.zeros((3, n), np.int64)
        out = Locations(np.full(n, -1, np.int64), start, length, row, np.zeros(n, np.bool_))
        for at in range(0, n, _AT_A_TIME) if self.runs else ():
            self._find(digests[at : at + _AT_A_TIME], among, at, out)
        return out

    def segments_of(self, digests: Sequence[str]) -> list[int]:
        """The numbers of all segments that hold any of these texts, ascending."""
        found = set[int]()
        for at in range(0, len(digests), _AT_A_TIME):
            words, usable = _words(pa.array(digests[at : at + _AT_A_TIME], pa.large_string()))
            found.update(*(run.segments_with(words[usable]) for run in self.runs))
        return sorted(found)

    def _find(
        self, digests: Sequence[str], among: Sequence[int] | None, first: int, out: Locations
    ) -> None:
        words, usable = _words(pa.array(digests, pa.large_string()))
        pending = np.flatnonzero(usable)
        for run in self.runs:
            rows = run.rows(words[pending], among)
            hit = rows >= 0
            for f in fields(out):
                getattr(out, f.name)[first + pending[hit]] = getattr(run, f.name)[rows[hit]]
            pending = pending[~hit]


def n_distinct(digests: Iterable[pa.ChunkedArray]) -> int:
    """How many texts there are in the columns `digest` of some tables, each text counted once."""
    words = [_words(column.combine_chunks())[0] for column in digests]
    return len(np.unique(np.concatenate(words).view("V32"))) if words else 0


def _worth_merging(earlier: _Run, later: _Run) -> bool:
    """Runs at least double from the last to the first, so that each text is merged only a few times."""
    return len(earlier) < 2 * len(later) and len(earlier) + len(later) <= MERGED_TEXTS


def _words(digests: Any) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Digests as four words each `[n, 4]`, and whether each `[n]` has 64 lower-case hex digits.

    Args:
        digests: an Arrow array of strings. Read as they lie: a cast would load `pyarrow.compute`.
    """
    _, ends, data = digests.buffers()
    width = np.int64 if pa.types.is_large_string(digests.type) else np.int32
    bounds = np.frombuffer(ends, width)[digests.offset : digests.offset + len(digests) + 1]
    usable = np.diff(bounds) == _HEX_DIGITS
    codes = np.frombuffer(data or b"", np.uint8)
    if usable.all():
        chosen = codes[bounds[0] : bounds[-1]].reshape(-1, _HEX_DIGITS)
    else:
        chosen = np.zeros((len(usable), _HEX_DIGITS), np.uint8)
        chosen[usable] = codes[bounds[:-1][usable, None] + np.arange(_HEX_DIGITS)]
    values = _VALUE_OF_CODE[chosen]
    usable = usable & (values != _NO_DIGIT).all(1)
    return ((values[:, 0::2] << 4) | values[:, 1::2]).view(np.uint64), usable
