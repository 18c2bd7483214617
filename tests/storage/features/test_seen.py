"""What is kept of a large store's tables and receipts: used while marks stay, never when they change.

Counted are reads of files, not seconds.
"""

import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features import seen, text_index
from permafrost.storage.features import store as store_module
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.segments import segment_path
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.readers import open_reader
from tests.storage.small_store import ARRAYS, SmallStore, filled_store, flip

N_TEXTS = 24


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """How often tables were read and receipts listed; every store counts as large, every file as settled."""
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    for module in (seen, text_index):
        monkeypatch.setattr(module, "WORTH", 2)
    monkeypatch.setattr(seen, "SETTLED_S", 0.0)
    counted: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted_call(*arguments: object) -> object:
            counted[name] += 1
            return call(*arguments)

        return counted_call

    for module, name in ((store_module, "read_segment"), (seen, "listed_receipts")):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    monkeypatch.setattr(
        store_module, "read_receipt", counting("read_receipt", store_module.read_receipt)
    )
    return counted


@pytest.fixture
def small(reads: Counter[str], tmp_path: Path) -> SmallStore:
    made = filled_store(tmp_path / "home", N_TEXTS)
    reads.clear()
    return made


def known(small: SmallStore) -> tuple[dict[str, np.ndarray], dict[int, tuple[str, ...]]]:
    """What a new process finds: the places of all texts, and the missing cells."""
    store = FeatureStore.open(small.store.root)
    where = store.locate(small.digests)
    return vars(where), store.missing_cells(store.segments(), ARRAYS)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_second_opening_reads_no_table_and_lists_no_receipts(
    small: SmallStore, reads: Counter[str], tmp_path: Path
) -> None:
    n = len(small.store.segments())
    assert n > 4
    shutil.rmtree(tmp_path / "cache")
    reads.clear()
    where, missing = known(small)
    assert reads["read_segment"] == n
    assert reads["listed_receipts"] == n
    reads.clear()
    again, missing_again = known(small)
    assert not reads
    assert_same(again, where)
    assert missing == missing_again == {}


def test_what_a_writer_made_is_known_to_the_next_process(
    small: SmallStore, reads: Counter[str]
) -> None:
    where, missing = known(small)
    assert reads["read_segment"] == reads["read_receipt"] == 0
    assert (where["segment"] >= 0).all()
    assert missing == {}


def test_every_cell_reads_in_a_second_process(small: SmallStore) -> None:
    known(small)
    assert_reads(small)


def assert_reads(small: SmallStore) -> None:
    """Every text's rows are those that were put in."""
    store = FeatureStore.open(small.store.root)
    for array in ARRAYS:
        reader = open_reader(store, array, small.digests, budget_bytes=1 << 20, tokens="all")
        n_read = 0
        for texts, rows in reader.in_order(4):
            for at, found in zip(texts.tolist(), rows, strict=True):
                wanted = small.expected(array, small.texts[at])
                assert np.array_equal(found, wanted.astype(found.dtype))
                n_read += 1
        assert n_read == len(small.digests)


def test_only_what_came_is_read(small: SmallStore, reads: Counter[str]) -> None:
    known(small)
    root = small.store.root
    (number,) = small.add(["one more"], [9])
    reads.clear()
    store = FeatureStore.open(root)
    assert store.locate(small.digests[-1:]).segment.tolist() == [number]
    assert reads["read_segment"] <= 1


def test_a_revoked_receipt_is_missed(small: SmallStore) -> None:
    known(small)
    receipt_path(small.store.root, 2, "hidden/1").unlink()
    assert known(small)[1] == {2: ("hidden/1",)}
    store = FeatureStore.open(small.store.root)
    store.missing_cells(store.segments(), ARRAYS)
    receipt_path(small.store.root, 3, "hidden/1").unlink()
    assert set(store.missing_cells(store.segments(), ARRAYS)) == {2, 3}, "in the same process, too"


def test_a_changed_table_is_read_and_its_damage_told(small: SmallStore) -> None:
    known(small)
    flip(segment_path(small.store.root, 1), 60)
    with pytest.raises(CorruptDataError, match="is damaged"):
        known(small)


def test_a_table_that_was_swapped_for_another_is_told(small: SmallStore) -> None:
    known(small)
    one, two = (segment_path(small.store.root, n) for n in (1, 2))
    spare = one.with_name("spare")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)
    with pytest.raises(CorruptDataError, match="is not the one that its receipts were written for"):
        known(small)


def test_times_that_were_set_back_do_not_hide_a_change(small: SmallStore) -> None:
    known(small)
    path = segment_path(small.store.root, 1)
    before = path.stat()
    flip(path, 60)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorruptDataError, match="is damaged"):
        known(small)


def test_what_has_not_settled_is_read_again(
    small: SmallStore, reads: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "SETTLED_S", 3600.0)
    shutil.rmtree(tmp_path / "cache")
    for _ in range(2):
        reads.clear()
        known(small)
        assert reads["read_segment"] == reads["listed_receipts"] == len(small.store.segments())
    assert not (tmp_path / "cache").exists()


def test_a_copy_of_a_store_is_read_anew(
    small: SmallStore, reads: Counter[str], tmp_path: Path
) -> None:
    known(small)
    small.store.root.parents[1].rename(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", small.store.root.parents[1])
    reads.clear()
    known(small)
    assert reads["read_segment"] == len(small.store.segments())


@pytest.mark.few(2)
@pytest.mark.parametrize("damage", ["cut", "flip", "packed", "encrypted", "renamed", "other"])
def test_a_damaged_cache_costs_time_and_nothing_else(
    small: SmallStore, reads: Counter[str], tmp_path: Path, damage: str
) -> None:
    where, _ = known(small)
    for path in (tmp_path / "cache" / "stores").iterdir():
        match damage:
            case "cut":
                path.write_bytes(path.read_bytes()[:-30])
            case "packed" | "encrypted":
                whole = bytearray(path.read_bytes())
                entry = whole.rindex(b"PK\x01\x02")  # of the directory at the end
                whole[entry + (10 if damage == "packed" else 8)] ^= 1
                path.write_bytes(whole)
            case "renamed":
                path.write_bytes(path.read_bytes().replace(b"marks.npy", b"morks.npy"))
            case "flip":
                with zipfile.ZipFile(path) as file:
                    at = file.infolist()[-1].header_offset + 200
                flip(path, at)
            case _:
                path.write_bytes(b"not a cache")
    reads.clear()
    found, missing = known(small)
    assert_same(found, where)
    assert missing == {}
    assert reads["read_segment"] == len(small.store.segments())


def test_inodes_of_64_bits_are_marks_too(
    small: SmallStore, reads: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def large(path: Any, **options: Any) -> object:
        found = stat(path, **options)
        if not isinstance(path, str) or not ("receipts" in path or "dir_fd" in options):
            return found
        fields = {n: getattr(found, n) for n in dir(found) if n.startswith("st_")}
        return SimpleNamespace(**fields | {"st_ino": found.st_ino + (1 << 63)})

    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(os, "stat", large)
    where, missing = known(small)
    reads.clear()
    again, missing_again = known(small)
    assert not reads
    assert_same(again, where)
    assert missing == missing_again == {}
