"""What a repair may remove: what is damaged while it holds the lease, and nothing that it could not read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from permafrost.storage.durable import read_whole
from permafrost.storage.errors import CorruptDataError, InputError, UnreadableError
from permafrost.storage.features.repairing import Mended, mend
from permafrost.storage.features.segments import segment_path, table_copy
from permafrost.storage.features.shard import unlike
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import Damage, discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.sealed import read_sealed, sealed_bytes
from tests.storage.small_store import SmallStore, flip, snapshot

CELL = "attention_rows/1"
FAILURES = [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EACCES, errno.ENOMEM]


def _n_found(small: SmallStore) -> int:
    store = FeatureStore.open(small.store.root)
    return int((store.locate(small.digests).segment >= 0).sum())


def _content(small: SmallStore) -> dict[str, bytes]:
    lock = [small.store.root / "writer.lock"]
    return {n: found for n, (_, found) in snapshot(small.store.root, besides=lock).items()}


def _fails(patch: pytest.MonkeyPatch, path: Path, code: int, when: Callable[[int], bool]) -> None:
    """The n-th read of a file, counted from 1, fails."""
    read, opened, seen = Path.read_bytes, Path.open, [0]

    def look(given: Path) -> None:
        if given == path:
            seen[0] += 1
            if when(seen[0]):
                raise OSError(code, os.strerror(code), str(given))

    def read_bytes(self: Path) -> bytes:
        look(self)
        return read(self)

    def open_path(self: Path, mode: str = "r", *args: Any, **others: Any) -> Any:
        if mode == "rb":
            look(self)
        return opened(self, mode, *args, **others)

    patch.setattr(Path, "read_bytes", read_bytes)
    patch.setattr(Path, "open", open_path)


class _OtherRepair(SilentProgress):
    """Another process repairs the store, from beginning to end, while this one verifies it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.other: Mended | None = None

    def advance(self, amount: float, note: str = "") -> None:
        if self.other is None:
            self.other = mend(self._root, SilentProgress())


def test_what_another_repair_has_restored_meanwhile_is_not_dropped(small: SmallStore) -> None:
    before = _content(small)
    flip(segment_path(small.store.root, 3), 40)
    progress = _OtherRepair(small.store.root)
    mended = mend(small.store.root, progress)
    assert progress.other is not None
    assert (progress.other.restored_tables, mended.dropped_segments) == ([3], [])
    assert _content(small) == before
    assert _n_found(small) == len(small.texts)


def test_damage_behind_a_table_that_another_repair_has_restored_is_found(small: SmallStore) -> None:
    flip(segment_path(small.store.root, 3), 40)

    class Other(_OtherRepair):
        def advance(self, amount: float, note: str = "") -> None:
            is_first = self.other is None
            super().advance(amount, note)
            if is_first:
                flip(small.store.shard_path(3, CELL), 5)

    mended = mend(small.store.root, Other(small.store.root))
    assert (mended.dropped_segments, mended.cells) == ([], {3: (CELL,)})


def test_what_another_repair_has_dropped_meanwhile_is_not_dropped_again(small: SmallStore) -> None:
    for path in (segment_path(small.store.root, 3), table_copy(small.store.root, 3)):
        flip(path, 40)
    progress = _OtherRepair(small.store.root)
    mended = mend(small.store.root, progress)
    assert progress.other is not None
    assert (progress.other.dropped_segments, mended.dropped_segments) == ([3], [])
    assert verify(small.store, SilentProgress()) == []


@pytest.mark.few(4)
@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_read_of_a_table_that_fails_once_costs_nothing(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch, code: int, n: int
) -> None:
    before = _content(small)
    with monkeypatch.context() as patch:
        _fails(patch, segment_path(small.store.root, 3), code, lambda i: i == n)
        mended = mend(small.store.root, SilentProgress())
    assert (mended.dropped_segments, mended.cells) == ([], {})
    assert _content(small) == before
    assert _n_found(small) == len(small.texts)


def test_a_table_that_stays_unreadable_is_restored_from_its_copy(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = segment_path(small.store.root, 3), _content(small)
    inode = path.stat().st_ino
    with monkeypatch.context() as patch:
        # As a bad sector, which goes with the file.
        _fails(patch, path, errno.EIO, lambda _: path.stat().st_ino == inode)
        mended = mend(small.store.root, SilentProgress())
    assert (mended.restored_tables, mended.dropped_segments) == ([3], [])
    assert _content(small) == before


@pytest.mark.parametrize("damaged", [True, False])
def test_nothing_is_removed_of_a_segment_whose_copy_cannot_be_read(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    path, copy = segment_path(small.store.root, 3), table_copy(small.store.root, 3)
    if damaged:
        flip(path, 40)
    else:
        path.unlink()
    before = _content(small)
    with monkeypatch.context() as patch:
        _fails(patch, copy, errno.EIO, lambda _: True)
        with pytest.raises(
            UnreadableError, match=r"000003\.parquet could not be read \(Input/output"
        ):
            mend(small.store.root, SilentProgress())
    assert _content(small) == before
    assert mend(small.store.root, SilentProgress()).restored_tables == [3]
    assert _n_found(small) == len(small.texts)


@pytest.mark.few(2)
@pytest.mark.parametrize("code", FAILURES)
def test_an_intact_shard_that_cannot_be_read_is_told_and_kept(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path, before = small.store.shard_path(1, CELL), _content(small)
    with monkeypatch.context() as patch:
        _fails(patch, path, code, lambda _: True)
        (damage,) = verify(small.store, SilentProgress())
        assert (damage.segment, damage.array) == (1, CELL)
        assert os.strerror(code) in damage.problem
        with pytest.raises(UnreadableError, match="it was not removed"):
            mend(small.store.root, SilentProgress())
    assert _content(small) == before
    with monkeypatch.context() as patch:
        _fails(patch, path, code, lambda i: i == 1)
        assert mend(small.store.root, SilentProgress()).cells == {}
    assert _content(small) == before


def test_a_table_that_fits_its_receipts_is_never_removed(small: SmallStore) -> None:
    before = _content(small)
    with writing(small.store) as writer, pytest.raises(AssertionError, match="texts of segment 3"):
        discard(writer, [Damage(3, None, "found before the lease was held")])
    assert _content(small) == before


def test_a_failed_read_is_no_damage_and_a_folder_in_place_of_a_file_is(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = small.store.checked_receipt(0, "hidden/1")
    path = small.store.shard_path(0, "hidden/1")
    with monkeypatch.context() as patch:
        _fails(patch, path, errno.EIO, lambda _: True)
        for read in (
            lambda: read_whole(path),
            lambda: small.store.reopen_shard(0, "hidden/1"),
            lambda: unlike(path, receipt.seal, 8),
        ):
            with pytest.raises(UnreadableError, match="says nothing about what is in it"):
                read()
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptDataError, match="it should be a file"):
        read_whole(path)
    with pytest.raises(CorruptDataError, match="is damaged"):
        small.store.reopen_shard(0, "hidden/1")


@pytest.mark.parametrize("name", ["store.json", "receipts/000001/hidden/1.json"])
def test_what_a_later_version_has_written_is_not_repaired(small: SmallStore, name: str) -> None:
    path = small.store.root / name
    fields, _ = read_sealed(path)
    path.write_bytes(sealed_bytes(fields | {"format_version": 2, "a field of it": 1}))
    flip(small.store.shard_path(0, CELL), 3)
    before = _content(small)
    with pytest.raises(InputError, match="format 2, this program reads 1; use a version"):
        mend(small.store.root, SilentProgress())
    assert _content(small) == before
