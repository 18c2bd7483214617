"""Texts that are in several segments of a store, as where stores that grew apart were put together."""

from pathlib import Path

import numpy as np

from permafrost.storage.features.parts import part_of
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.store import ALWAYS
from permafrost.storage.features.verification import verify
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.copied_stores import assert_reads, copy, there
from tests.storage.small_store import ARRAYS, new_store


def test_stores_that_grew_apart_come_together(tmp_path: Path) -> None:
    one, two = (new_store(tmp_path / n) for n in ("one", "two"))
    one.add(["a", "b", "shared"], [5, 6, 7], seed=1)
    two.add(["c", "shared", "d"], [8, 7, 9], seed=2)
    plan = copy(two, tmp_path / "one")
    assert (plan.n_texts, plan.n_elsewhere) == (3, 1)
    store = there(tmp_path / "one")
    assert store.segments() == [0, 1]
    assert_reads(store, one, ["a", "b", "shared"], ARRAYS)
    assert_reads(store, two, ["c", "d"], ARRAYS)
    assert not verify(store, SilentProgress())


def test_texts_that_are_all_there_in_other_segments_are_not_copied(tmp_path: Path) -> None:
    one, two = (new_store(tmp_path / n) for n in ("one", "two"))
    one.add(["a", "b", "c"], [5, 6, 7])
    two.add(["a", "c"], [5, 7])
    plan = copy(two, tmp_path / "one")
    assert (plan.n_cells, plan.n_present) == (0, 2 + len(ARRAYS))
    assert there(tmp_path / "one").segments() == [0]


def test_a_text_of_two_segments_is_read_from_the_one_that_has_the_array(tmp_path: Path) -> None:
    one, two = (new_store(tmp_path / n) for n in ("one", "two"))
    one.add(["a", "shared"], [5, 7], ["hidden/1"], seed=1)
    two.add(["c", "shared", "d"], [8, 7, 9], ["hidden/2"], seed=2)
    copy(two, tmp_path / "one")
    store = there(tmp_path / "one")
    digests = [text_digest(text) for text in ("a", "shared", "d", "new")]
    assert store.locate(digests).segment.tolist() == [0, 0, 1, -1]
    assert store.locate(digests, ["hidden/2"]).segment.tolist() == [0, 1, 1, -1]
    assert store.locate(digests, ["hidden/1", "hidden/2"]).segment.tolist() == [0, 0, 1, -1]
    assert_reads(store, one, ["a", "shared"], ("hidden/1",))
    assert_reads(store, two, ["c", "shared", "d"], ("hidden/2",))
    part = part_of(store, ("hidden/2",), [text_digest("shared")])
    assert part.segments == (1,)
    three = new_store(tmp_path / "three")
    three.add(["d", "shared"], [9, 7], ["hidden/2"], seed=3)
    assert copy(three, tmp_path / "one").n_cells == 0


def test_a_reader_and_an_extraction_agree_on_which_segment_of_a_text_counts(
    tmp_path: Path,
) -> None:
    """The first segment has the array and has lost its span."""
    one, two = (new_store(tmp_path / n) for n in ("one", "two"))
    one.add(["shared", "a"], [7, 5], ["hidden/1"], seed=1)
    two.add(["shared"], [7], ["hidden/1", "hidden/2"], seed=2)
    copy(two, tmp_path / "one")
    receipt_path(one.store.root, 0, "span").unlink()
    store = there(tmp_path / "one")
    digests = [text_digest("shared")]
    wanted = (*ALWAYS, "hidden/1")
    where = store.locate(digests, wanted).segment.tolist()
    assert where == [1]
    assert store.missing_cells(where, wanted) == {}
    reader = open_reader(store, "hidden/1", digests, budget_bytes=1 << 30, precision="stored")
    rows = next(reader.in_order(1))[1]
    assert np.array_equal(rows[0], two.expected("hidden/1", "shared", span=True))
