import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from permafrost.storage.ragged import Ragged, offsets_of, ranges

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=12)


def _documents(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 3)).astype(np.float32) for n in lengths]


@given(LENGTHS)
def test_packing_then_slicing_returns_every_document(lengths: list[int]) -> None:
    documents = _documents(lengths)
    packed = Ragged.from_arrays(documents)
    assert len(packed) == len(documents)
    assert packed.lengths.tolist() == lengths
    for i, document in enumerate(documents):
        assert np.array_equal(packed[i], document)
        assert np.array_equal(packed[i - len(documents)], document)
    assert all(np.array_equal(a, b) for a, b in zip(packed, documents, strict=True))


@given(LENGTHS, st.data())
def test_take_gives_the_documents_asked_for_in_that_order(
    lengths: list[int], data: st.DataObject
) -> None:
    documents = _documents(lengths)
    wanted = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=10))
    taken = Ragged.from_arrays(documents).take(np.array(wanted, dtype=np.int64))
    assert len(taken) == len(wanted)
    for i, j in enumerate(wanted):
        assert np.array_equal(taken[i], documents[j])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=10))
def test_ranges_equals_the_concatenation_of_aranges(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([a for a, _ in pairs], dtype=np.int64)
    lengths = np.array([n for _, n in pairs], dtype=np.int64)
    written_out = [i for a, n in pairs for i in range(a, a + n)]
    assert ranges(starts, lengths).tolist() == written_out


def test_offsets_begin_at_zero_and_are_int64() -> None:
    offsets = offsets_of([2, 0, 3])
    assert offsets.tolist() == [0, 2, 2, 5]
    assert offsets.dtype == np.int64


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 4], "start at 0"),
        ([0, 3], "offsets end at 3 but data has 4 rows"),
        ([0, 3, 1, 4], "decrease"),
        ([], "start at 0"),
    ],
)
def test_offsets_that_do_not_describe_the_data_are_refused(
    offsets: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Ragged(np.zeros((4, 2)), np.array(offsets, dtype=np.int64))


def test_packing_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="zero documents"):
        Ragged.from_arrays([])


def test_a_document_beyond_the_end_is_an_index_error() -> None:
    packed = Ragged.from_arrays(_documents([1, 2]))
    for index in (2, -3):
        with pytest.raises(IndexError, match="of 2"):
            packed[index]
