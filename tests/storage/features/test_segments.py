from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.features.layout import Axes, check_axes
from permafrost.storage.features.segments import (
    SCHEMA,
    build_table,
    pack,
    read_segment,
    segment_path,
    write_segment,
)
from permafrost.storage.keys import text_digest
from tests.storage.small_store import AXES, flip

LENGTHS = st.lists(st.integers(0, 16), max_size=60).map(lambda n: np.array(n, dtype=np.int64))
CAPACITIES = st.builds(
    Axes, segment_tokens=st.sampled_from([16, 32, 64]), segment_texts=st.sampled_from([1, 4, 16])
)


@given(LENGTHS, CAPACITIES)
def test_packing_places_every_text_once_within_capacity_longest_first(
    lengths: np.ndarray, axes: Axes
) -> None:
    segments = pack(lengths, axes)
    placed = [int(i) for members in segments for i in members]
    assert sorted(placed) == list(range(len(lengths)))
    for members in segments:
        assert 0 < len(members) <= axes.segment_texts
        assert lengths[members].sum() <= axes.segment_tokens
    in_order = lengths[placed].tolist()
    assert in_order == sorted(in_order, reverse=True)
    ties = [(-n, i) for n, i in zip(in_order, placed, strict=True)]
    assert ties == sorted(ties)


@given(LENGTHS, CAPACITIES)
def test_a_segment_is_closed_only_when_the_next_text_does_not_fit(
    lengths: np.ndarray, axes: Axes
) -> None:
    segments = pack(lengths, axes)
    for members, following in pairwise(segments):
        full = len(members) == axes.segment_texts
        assert full or lengths[members].sum() + lengths[following[0]] > axes.segment_tokens


def test_a_text_longer_than_a_segment_is_refused() -> None:
    with pytest.raises(InputError, match="65 tokens but a segment holds 64"):
        pack(np.array([3, 65]), AXES)


@pytest.mark.parametrize("axes", [(48, 8), (0, 8), (64, 3), (64, -1)])
def test_sizes_that_are_not_powers_of_two_are_refused(axes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="power of two"):
        check_axes(Axes(segment_tokens=axes[0], segment_texts=axes[1]), 1)


def test_segments_too_small_for_max_length_are_refused() -> None:
    with pytest.raises(InputError, match="segment_tokens is 64 but a text may have 65"):
        check_axes(AXES, 65)


def _table(number: int = 3):
    lengths = np.array([5, 3, 0])
    return build_table(
        number,
        AXES,
        ["a", "ü\n", ""],
        lengths,
        np.array([1, 0, 0]),
        np.array([4, 3, 0]),
        np.array([True, False, False]),
    )


def test_a_table_has_exactly_the_columns_of_the_format() -> None:
    # Written out here because other tools read these files without our code.
    assert [(f.name, str(f.type)) for f in _table().schema] == [
        ("digest", "string"),
        ("text", "string"),
        ("n_tokens", "int32"),
        ("token_start", "int64"),
        ("text_row", "int64"),
        ("span_start", "int32"),
        ("span_end", "int32"),
        ("truncated", "bool"),
    ]


def test_rows_are_contiguous_on_both_axes_from_the_start_of_the_segment() -> None:
    columns = _table().to_pydict()
    assert columns["token_start"] == [3 * 64, 3 * 64 + 5, 3 * 64 + 8]
    assert columns["text_row"] == [3 * 8, 3 * 8 + 1, 3 * 8 + 2]
    assert columns["digest"] == [text_digest(t) for t in ("a", "ü\n", "")]
    assert columns["span_start"] == [1, 0, 0]
    assert columns["truncated"] == [True, False, False]


def test_a_written_segment_reads_back_the_same(tmp_path: Path) -> None:
    written = write_segment(tmp_path, 3, _table())
    read = read_segment(tmp_path, 3)
    assert read.table.equals(written.table)
    assert (read.sha256, read.number) == (written.sha256, 3)
    assert (read.n_texts, read.n_tokens) == (3, 8)
    assert (read.rows("token"), read.rows("text")) == (8, 3)
    assert segment_path(tmp_path, 3).name == "000003.parquet"
    assert read_segment(tmp_path, 3, ["digest"]).table.column_names == ["digest"]


def test_any_flipped_byte_changes_the_digest_or_is_refused(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, 0, _table(0))
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        flip(path, at)
        try:
            read = read_segment(tmp_path, 0)
        except CorruptDataError as error:
            assert "000000.parquet" in str(error)  # noqa: PT017
        else:
            assert read.sha256 != segment.sha256
        path.write_bytes(whole)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = segment_path(tmp_path, 0)
    path.parent.mkdir()
    pq.write_table(_table().drop_columns(["span_end"]), path)
    with pytest.raises(CorruptDataError, match=f"expected {SCHEMA.names}".replace("[", r"\[")):
        read_segment(tmp_path, 0)
