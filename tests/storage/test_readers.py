from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.layout import Codec
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import (
    FeatureReader,
    InMemoryReader,
    WindowedReader,
    open_reader,
    read_rows,
)
from tests.storage.conftest import Shared
from tests.storage.small_store import SmallStore, as_float32, filled_store, flip

Kind = tuple[Codec, str]
Request = tuple[Kind, str, list[str], int, int, Literal["span", "all"]]
"""Which store, array, texts, budget in bytes, batch size, tokens."""

REQUESTS: st.SearchStrategy[Request] = st.tuples(
    st.tuples(st.sampled_from(["none", "zstd"]), st.sampled_from(["float16", "bfloat16"])),
    st.sampled_from(["hidden/1", "attention_rows/1", "pooled/hidden_mean/1"]),
    st.lists(st.integers(0, 19).map(lambda i: f"text {i}"), min_size=1, max_size=40),
    st.integers(1, 4000),
    st.integers(1, 9),
    st.sampled_from(["span", "all"]),
)  # type: ignore[assignment]


def _open(small: SmallStore, array: str, wanted: list[str], **options: Any) -> Any:
    return open_reader(small.store, array, [text_digest(t) for t in wanted], **options)


def _check_each_once(
    batches: Iterator[tuple[NDArray[np.int64], Ragged]], expected: list[NDArray[Any]], size: int
) -> list[int]:
    seen: list[int] = []
    short = 0
    for indices, rows in batches:
        assert len(indices) == len(rows)
        assert 0 < len(indices) <= size
        short += len(indices) < size
        for k, i in enumerate(indices.tolist()):
            assert rows[k].dtype == expected[i].dtype
            assert np.array_equal(rows[k], expected[i])
            seen.append(i)
    assert sorted(seen) == list(range(len(expected)))
    assert short <= 1
    return seen


@given(REQUESTS, st.integers(0, 5), st.integers(0, 3))
def test_any_budget_and_batch_size_give_each_text_once_with_its_rows(
    shared: Shared, request: Request, seed: int, epoch: int
) -> None:
    kind, array, texts, budget, size, tokens = request
    small = shared(*kind)
    reader: FeatureReader = _open(small, array, texts, budget_bytes=budget, tokens=tokens)
    stored = [small.expected(array, t, span=tokens == "span") for t in texts]
    expected = [as_float32(rows, small.store.spec(array).dtype) for rows in stored]
    assert reader.array == array
    assert reader.n_texts == len(texts)
    assert reader.width == expected[0].shape[1]
    assert reader.lengths.tolist() == [len(rows) for rows in expected]
    in_order = _check_each_once(reader.in_order(size), expected, size)
    assert in_order == list(range(len(texts)))
    first = _check_each_once(reader.shuffled(size, seed, epoch), expected, size)
    again = _check_each_once(reader.shuffled(size, seed, epoch), expected, size)
    assert first == again


@given(REQUESTS, st.data())
def test_a_subset_counts_from_zero_again(
    shared: Shared, request: Request, data: st.DataObject
) -> None:
    kind, array, texts, budget, size, tokens = request
    small = shared(*kind)
    picked = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=12))
    reader = _open(
        small, array, texts, budget_bytes=budget, tokens=tokens, precision="stored"
    ).subset(np.array(picked))
    expected = [small.expected(array, texts[i], span=tokens == "span") for i in picked]
    assert reader.n_texts == len(picked)
    assert reader.lengths.tolist() == [len(rows) for rows in expected]
    _check_each_once(reader.in_order(size), expected, size)
    _check_each_once(reader.shuffled(size, 0, 0), expected, size)
    nested = reader.subset(np.array([len(picked) - 1, 0]))
    _check_each_once(nested.in_order(size), [expected[-1], expected[0]], size)


@given(REQUESTS, st.integers(0, 3))
def test_what_is_loaded_at_once_is_bounded_by_the_budget(
    shared: Shared, request: Request, seed: int
) -> None:
    kind, array, texts, budget, size, tokens = request
    small = shared(*kind)
    reader = _open(small, array, texts, budget_bytes=budget, tokens=tokens)
    row_bytes = small.store.spec(array).row_bytes
    text_bytes = np.array([len(small.expected(array, t)) * row_bytes for t in texts])
    if isinstance(reader, InMemoryReader):
        assert reader.features.data.nbytes <= budget
        return
    sizes: list[int] = []
    unpatched = WindowedReader.load

    def load(self: WindowedReader, wanted: NDArray[np.int64], opening: None = None) -> Ragged:
        found = unpatched(self, wanted, opening)
        sizes.append(found.data.nbytes)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowedReader, "load", load)
        list(reader.in_order(size))
        # At least one batch is loaded, whatever the budget.
        assert max(sizes) <= max(budget, size * text_bytes.max())
        sizes.clear()
        list(reader.shuffled(size, seed, 0))
    # At least one segment, and the texts that did not fill the last batch of the window before.
    of_segment = np.bincount(reader.where.segment, weights=text_bytes)
    left_over = (size - 1) * text_bytes.max()
    assert max(sizes) <= max(budget, of_segment.max()) + left_over


def test_epochs_and_seeds_differ(shared: Shared) -> None:
    small = shared("none", "float16")
    for budget in (1000, 1 << 20):
        reader = _open(small, "hidden/1", small.texts, budget_bytes=budget)
        orders = {
            tuple(int(i) for indices, _ in reader.shuffled(4, seed, epoch) for i in indices)
            for seed in (0, 1)
            for epoch in (0, 1, 2)
        }
        assert len(orders) == 6
        assert tuple(range(20)) not in orders


def test_a_window_shuffles_texts_of_several_segments_together(shared: Shared) -> None:
    small = shared("none", "float16")
    reader = _open(small, "hidden/1", small.texts, budget_bytes=3000, tokens="all")
    assert isinstance(reader, WindowedReader)
    batches = [np.unique(reader.where.segment[i]) for i, _ in reader.shuffled(8, 0, 0)]
    assert max(len(b) for b in batches) > 1


def test_what_fits_is_held_in_memory_and_what_does_not_is_windowed(shared: Shared) -> None:
    small = shared("none", "float16")
    n_tokens = sum(len(small.expected("hidden/1", t)) for t in small.texts)
    exactly = n_tokens * 16
    fits = _open(small, "hidden/1", small.texts, budget_bytes=exactly, tokens="all")
    over = _open(small, "hidden/1", small.texts, budget_bytes=exactly - 1, tokens="all")
    assert isinstance(fits, InMemoryReader)
    assert isinstance(over, WindowedReader)


@pytest.mark.parametrize(("budget", "stays"), [(1 << 20, False), (1, True)])
def test_what_is_held_in_memory_is_not_mapped_as_well(
    tmp_path: Path, budget: int, stays: bool
) -> None:
    small = filled_store(tmp_path)
    reader = _open(small, "hidden/1", small.texts, budget_bytes=budget)
    list(reader.in_order(4))
    mapped = str(small.store.zarr_path / "hidden" / "1") in Path("/proc/self/maps").read_text()
    assert mapped == stays, "an open map counts as memory of the process"


def test_stored_precision_gives_the_bits_and_float32_their_value(shared: Shared) -> None:
    small = shared("none", "bfloat16")
    digest = [text_digest(small.texts[0])]
    for precision, dtype in (("stored", np.uint16), ("float32", np.float32)):
        reader = open_reader(
            small.store,
            "hidden/1",
            digest,
            budget_bytes=1 << 20,
            precision=precision,  # type: ignore[arg-type]
        )
        ((_, rows),) = reader.in_order(1)
        assert rows.data.dtype == dtype


def test_arrays_of_one_dimension_are_readable(shared: Shared) -> None:
    small = shared("zstd", "float16")
    for budget in (1, 1 << 20):
        reader = _open(
            small, "token_ids", small.texts, budget_bytes=budget, precision="stored", tokens="all"
        )
        assert reader.width == 1
        expected = [small.expected("token_ids", t) for t in small.texts]
        _check_each_once(reader.in_order(7), expected, 7)


def test_texts_without_tokens_have_no_rows(tmp_path: Path) -> None:
    small = filled_store(tmp_path, 4)
    small.add(["", "one", "also empty"], [0, 1, 0])
    for budget in (1, 1 << 20):
        reader = _open(small, "hidden/1", small.texts, budget_bytes=budget)
        expected = [
            as_float32(small.expected("hidden/1", t, span=True), "float16") for t in small.texts
        ]
        assert reader.lengths.tolist() == [len(e) for e in expected]
        _check_each_once(reader.in_order(2), expected, 2)
        _check_each_once(reader.shuffled(2, 0, 0), expected, 2)


def test_no_texts_give_no_batches(shared: Shared) -> None:
    small = shared("none", "float16")
    for budget in (0, 1 << 20):
        reader = _open(small, "hidden/1", small.texts, budget_bytes=budget)
        empty = reader.subset(np.empty(0, np.int64))
        assert list(empty.in_order(4)) == list(empty.shuffled(4, 0, 0)) == []


def test_a_text_that_is_not_stored_is_refused(shared: Shared) -> None:
    small = shared("none", "float16")
    with pytest.raises(
        NotFoundError, match=r"1 of 2 texts are not in store .*: those with the digests"
    ):
        _open(small, "hidden/1", [small.texts[0], "never seen"], budget_bytes=1)
    texts = [small.texts[0], *(f"new {i}" for i in range(4))]
    with pytest.raises(
        NotFoundError, match=r"4 of 5 .*: text 1 'new 0', text 2 'new 1', text 3 'new 2', ...; e"
    ):
        _open(small, "hidden/1", texts, budget_bytes=1, texts=texts)


def test_an_array_that_is_not_stored_is_refused_and_what_there_is_is_named(shared: Shared) -> None:
    small = shared("none", "float16")
    with pytest.raises(NotFoundError, match=r"hidden/2 is missing .* has attention_rows/1"):
        _open(small, "hidden/2", small.texts, budget_bytes=1)
    with pytest.raises(NotFoundError, match="hidden/2 of segment 0"):
        read_rows(small.store, 0, "hidden/2", 0, 1)


@pytest.mark.parametrize("budget", [1, 1 << 20])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "swap"])
def test_damage_is_never_returned_as_data(
    either_codec: SmallStore, budget: int, damage: str
) -> None:
    store = either_codec.store
    first, second = (store.shard_path(s, "hidden/1") for s in (0, 1))
    match damage:
        case "flip":
            flip(first, 3)
        case "truncate":
            first.write_bytes(first.read_bytes()[:-30])
        case "remove":
            first.unlink()
        case _:
            content = first.read_bytes()
            first.write_bytes(second.read_bytes())
            second.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"hidden/1/c/\d/0 is damaged"):
        for _ in _open(
            either_codec, "hidden/1", either_codec.texts, budget_bytes=budget, tokens="all"
        ).in_order(4):
            pass
    # Other arrays of the same segment are not touched by it.
    pooled = "pooled/hidden_mean/1"
    reader = _open(either_codec, pooled, either_codec.texts, budget_bytes=budget)
    expected = [as_float32(either_codec.expected(pooled, t), "float16") for t in either_codec.texts]
    _check_each_once(reader.in_order(4), expected, 4)


def test_a_changed_layout_under_a_receipt_is_refused(either_codec: SmallStore) -> None:
    # The swap keeps both tables valid, but the rows would be those of other texts.
    root = either_codec.store.root / "segments"
    content = (root / "000000.parquet").read_bytes()
    (root / "000000.parquet").write_bytes((root / "000001.parquet").read_bytes())
    (root / "000001.parquet").write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"table of segment 0 .* is not the one that its"):
        read_rows(either_codec.store.open(either_codec.store.root), 0, "hidden/1", 0, 1)
