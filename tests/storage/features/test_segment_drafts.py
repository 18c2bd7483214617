"""Drafts that others write and the store's writer commits: whole ones of this attempt, and nothing else."""

import errno
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from permafrost.storage.errors import CorruptDataError, DiskFullError, InputError, PermafrostError
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.segment_drafts import Assignment, SealedSegment, SegmentDraft
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import StoreWriter, writing
from permafrost.storage.progress import SilentProgress
from tests.storage.small_store import AXES, SmallStore, new_store, snapshot

ARRAYS = ("hidden/2", "pooled/values_mean/1")


def elsewhere(cells: Assignment, seed: int = 0) -> SealedSegment:
    """What another process does: it is sent the cells, opens the store anew and sends the draft back."""
    cells = pickle.loads(pickle.dumps(cells))
    store = FeatureStore.open(cells.root)
    with SegmentDraft(store, cells, {"seed": str(seed)}) as draft:
        append(store, draft, cells, seed)
        return pickle.loads(pickle.dumps(draft.seal()))


def append(store: FeatureStore, draft: SegmentDraft, cells: Assignment, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for array in cells.arrays:
        spec = store.spec(array)
        n_rows = store.segment(cells.segment).rows(spec.axis)
        draft.append(array, rng.normal(size=(n_rows, spec.width or 1)).astype(np.float16))


def draft_files(store: FeatureStore) -> list[Path]:
    return [p for p in store.root.rglob(".draft-*/*/*") if p.is_file()]


def assign(writer: StoreWriter, number: int = 0) -> Assignment:
    writer.declare(ARRAYS)
    return writer.assign(number, ARRAYS)


def test_a_draft_of_another_process_is_committed(small: SmallStore) -> None:
    with writing(small.store) as writer:
        sealed = elsewhere(assign(writer), seed=3)
        assert small.store.missing_cells([0], ARRAYS) == {0: ARRAYS}, "a seal commits nothing"
        writer.commit(sealed)
        assert not draft_files(small.store)
    assert not list(small.store.root.rglob(".draft-*"))
    assert small.store.missing_cells([0], ARRAYS) == {}
    assert verify(small.store, SilentProgress()) == []
    assert read_receipt(small.store.root, 0, "hidden/2").provenance["seed"] == "3"


def lose(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    (cells.drafts / sealed.cells["hidden/2"].draft).unlink()
    return sealed


def cut(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    path = cells.drafts / sealed.cells["hidden/2"].draft
    path.write_bytes(path.read_bytes()[:-30])
    return sealed


def half_written(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    """Of the right size, as room is reserved first, but without its end."""
    path = cells.drafts / sealed.cells["hidden/2"].draft
    path.write_bytes(path.read_bytes()[:-30] + bytes(30))
    return sealed


def of_other_rows(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    """The file of a second attempt, of the very same size, under the seal of the first."""
    other = elsewhere(cells, seed=9)
    own, path = (cells.drafts / s.cells["hidden/2"].draft for s in (sealed, other))
    assert own.stat().st_size == path.stat().st_size
    shutil.copy(path, own)
    return sealed


def of_another_store(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    return replace(sealed, store_id="0" * 64)


def of_another_layout(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    return replace(sealed, segment_sha256="0" * 64)


def of_another_segment(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    return replace(sealed, segment=1)


def of_fewer_rows(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    cell = sealed.cells["hidden/2"]
    seal = replace(cell.seal, chunk_crc32c=cell.seal.chunk_crc32c[:-1])
    return replace(sealed, cells={**sealed.cells, "hidden/2": replace(cell, seal=seal)})


def of_an_ended_attempt(sealed: SealedSegment, cells: Assignment) -> SealedSegment:
    """Its folder was another writer's."""
    shutil.rmtree(cells.drafts)
    cells.drafts.mkdir()
    return sealed


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lose, r"hidden/2 .*: it cannot be read \(No such file"),
        (cut, r"bytes, its seal says"),
        (half_written, "checksum of its chunk index"),
        (of_other_rows, "the checksum of chunk 0 is not that of its seal"),
        (of_another_store, "was written for the store 000000000000"),
        (of_another_layout, "and the table 000000000000"),
        (of_another_segment, "the draft of segment 1 .* with the table"),
        (of_fewer_rows, "chunks for [0-9]+ rows"),
        (of_an_ended_attempt, "it cannot be read"),
    ],
)
def test_what_is_not_a_whole_draft_of_these_cells_is_refused_and_changes_nothing(
    small: SmallStore, spoil: object, says: str
) -> None:
    assert callable(spoil)
    with writing(small.store) as writer:
        cells = assign(writer)
        sealed = spoil(elsewhere(cells), cells)
        before = snapshot(small.store.root)
        with pytest.raises(CorruptDataError, match=says):
            writer.commit(sealed)
        assert snapshot(small.store.root) == before
        writer.commit(elsewhere(cells))
    assert not list(small.store.root.rglob(".draft-*"))
    assert verify(small.store, SilentProgress()) == []


def test_zstd_drafts_are_checked_too(tmp_path: Path) -> None:
    small = new_store(tmp_path, codec="zstd", axes=AXES)
    small.add(["a", "b"], [20, 30], [])
    with writing(small.store) as writer:
        cells = assign(writer)
        sealed = half_written(elsewhere(cells), cells)
        with pytest.raises(CorruptDataError, match="chunk index"):
            writer.commit(sealed)
        writer.commit(elsewhere(cells))
    assert verify(small.store, SilentProgress()) == []


def test_of_two_attempts_the_first_one_counts(small: SmallStore) -> None:
    with writing(small.store) as writer:
        cells = assign(writer)
        first, second = elsewhere(cells, seed=1), elsewhere(cells, seed=2)
        writer.commit(first)
        before = {n: f for n, f in snapshot(small.store.root).items() if ".draft" not in n}
        writer.commit(second)
        assert snapshot(small.store.root) == before, "written again, or the second draft was left"
    assert verify(small.store, SilentProgress()) == []


def test_a_draft_lives_as_long_as_the_writer_it_is_for(small: SmallStore) -> None:
    """Committing, other attempts that fail, and readers leave it alone; the end of the writer does not."""
    with writing(small.store) as writer:
        cells = assign(writer)
        store = FeatureStore.open(cells.root)
        with SegmentDraft(store, cells, {}) as slow:
            slow.append("hidden/2", np.ones((1, 8), np.float16))
            with SegmentDraft(store, cells, {}) as failed:
                failed.append("hidden/2", np.ones((1, 8), np.float16))
                own = len(draft_files(store))
            assert len(draft_files(store)) == own - len(ARRAYS), "that of the failed one is dropped"
            writer.commit(elsewhere(cells, seed=1))
            assert len(draft_files(store)) == len(ARRAYS), "that of the slow one is still there"
            writer.close()
            assert not list(store.root.rglob(".draft-*"))
            # Its files have no names any more; it cannot bring them back.
            slow.append("hidden/2", np.ones((store.segment(0).n_tokens - 1, 8), np.float16))
        assert not list(store.root.rglob(".draft-*"))
    with writing(small.store):
        with pytest.raises(PermafrostError, match="segment 0 was to be computed for has ended"):
            SegmentDraft(store, cells, {})
        assert not list(store.root.rglob(".draft-*"))


def test_the_next_writer_drops_the_drafts_of_one_that_was_killed(small: SmallStore) -> None:
    left = small.store.root / ".draft-segments-0123abcd.1.1-0123abcd" / "000000-x" / "hidden-2"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with writing(small.store):
        assert not list(small.store.root.rglob(".draft-*"))


def test_cells_are_not_written_for_another_layout(small: SmallStore) -> None:
    with writing(small.store) as writer:
        cells = replace(assign(writer), segment_sha256="0" * 64)
        with pytest.raises(CorruptDataError, match="is not the one that its cells were given out"):
            SegmentDraft(small.store, cells, {})
        assert not draft_files(small.store)


def test_what_is_in_the_way_of_a_shard_is_told_before_anything_is_computed(
    small: SmallStore,
) -> None:
    (small.store.zarr_path / "hidden" / "2").mkdir()
    (small.store.zarr_path / "hidden" / "2" / "c").write_text("no folder")
    with (
        writing(small.store) as writer,
        pytest.raises(CorruptDataError, match="something else is in its place or above it"),
    ):
        writer.assign(0, ["hidden/2"])


def test_a_folder_in_the_place_of_a_shard_is_told_and_left(small: SmallStore) -> None:
    with writing(small.store) as writer:
        sealed = elsewhere(assign(writer))
        path = small.store.shard_path(0, "hidden/2")
        (path / "inside").mkdir(parents=True)
        with pytest.raises(CorruptDataError, match="something else is in its place"):
            writer.commit(sealed)
        assert (path / "inside").is_dir()
        assert not small.store.committed(0).intersection(ARRAYS)


def test_a_draft_that_finds_no_room_for_its_folder_says_so(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, store = small.store.segments()[0], small.store

    def no_room(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with writing(store) as writer:
        cells = writer.assign(number, ARRAYS)
        monkeypatch.setattr(Path, "mkdir", no_room)
        with pytest.raises(DiskFullError, match=r"no room to write .*draft-segments"):
            SegmentDraft(store, cells, {})
        monkeypatch.undo()
    assert draft_files(store) == []


def test_a_text_row_that_its_array_cannot_hold_is_an_error(tmp_path: Path) -> None:
    small = new_store(tmp_path, axes=Axes(segment_tokens=32, segment_texts=1 << 31))
    small.add(["the first row"], [32], [])
    with pytest.raises(InputError, match=r"text row 2,147,483,648, .* up to 2,147,483,647"):
        small.add(["row 2 ** 31"], [32], [])
    assert small.store.committed(1) == frozenset()
