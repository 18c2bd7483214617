"""A repair that is killed after it has dropped what was damaged: the next one computes that."""

import numpy as np
import pytest

from permafrost.storage.features.due import due_path, read_due
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.segments import table_copy
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.storage.small_store import SmallStore, flip

CELL = "hidden/1"


def problems(store: FeatureStore) -> list[str]:
    return [damage.problem for damage in verify(store, SilentProgress())]


@pytest.fixture
def killed(small: SmallStore) -> SmallStore:
    """A store in which a repair has dropped a cell and a projection, and then was killed."""
    write_projection(small.store, 1, np.ones((4, 8), np.float32), None)
    flip(small.store.shard_path(1, CELL), 5)
    flip(small.store.zarr_path / "projections" / "o_proj" / "1" / "c" / "0" / "0", 5)
    mended = mend(small.store.root, SilentProgress())
    assert (mended.cells, mended.projections) == ({1: (CELL,)}, [1])
    return small


def test_verify_tells_of_it(killed: SmallStore) -> None:
    (problem,) = problems(killed.store)
    assert "did not end: 1 cell(s) and 1 output projection(s) that it dropped" in problem
    assert f"run 'permafrost repair {killed.store.store_id[:12]}' again" in problem


def test_the_next_repair_goes_on_with_it(killed: SmallStore) -> None:
    flip(killed.store.shard_path(0, CELL), 5)
    mended = mend(killed.store.root, SilentProgress())
    assert (mended.cells, mended.projections) == ({0: (CELL,), 1: (CELL,)}, [1])
    assert mend(killed.store.root, SilentProgress()).cells == mended.cells


def test_what_was_made_since_is_not_due(killed: SmallStore) -> None:
    store = killed.store
    with writing(store) as writer:
        killed.fill(writer, 1, [CELL], np.random.default_rng(0))
    write_projection(store, 1, np.ones((4, 8), np.float32), None)
    assert problems(store) == []
    assert not mend(store.root, SilentProgress()).cells
    assert not due_path(store.root).exists()


def test_a_killed_repair_that_had_not_begun_to_drop_is_harmless(small: SmallStore) -> None:
    flip(small.store.shard_path(1, CELL), 5)
    damage = verify(small.store, SilentProgress())
    mend(small.store.root, SilentProgress())
    noted = due_path(small.store.root).read_bytes()
    with writing(small.store) as writer:
        small.fill(writer, 1, [CELL], np.random.default_rng(0))
    flip(small.store.shard_path(1, CELL), 5)
    due_path(small.store.root).write_bytes(noted)
    assert not read_due(small.store), "its receipt is there"
    assert [d.array for d in verify(small.store, SilentProgress())] == [d.array for d in damage]
    assert mend(small.store.root, SilentProgress()).cells == {1: (CELL,)}


def test_a_damaged_note_is_named_and_removed(killed: SmallStore) -> None:
    path = due_path(killed.store.root)
    whole = path.read_bytes()
    for content in (b"{", b"[]", whole.replace(b"1", b"2", 1), b'{"cells": 3}'):
        path.write_bytes(content)
        (problem,) = problems(killed.store)
        assert str(path) in problem
        assert "removes it, and the next extraction computes" in problem
        assert mend(killed.store.root, SilentProgress()).problems == [problem]
        assert not path.exists()


def test_a_table_that_a_killed_writer_left_alone_has_a_copy_when_its_cells_are_there(
    small: SmallStore,
) -> None:
    store = small.store
    copy = table_copy(store.root, 1)
    whole = copy.read_bytes()
    with writing(store) as writer:
        discard(writer, [])
        for array in sorted(store.committed(1)):
            (store.root / "receipts" / "000001" / f"{array}.json").unlink()
        copy.unlink()
        store.forget()
        writer.declare([])
        small.fill(writer, 1, ["token_ids", "span", CELL], np.random.default_rng(0))
        assert not copy.exists()
    assert copy.read_bytes() == whole
