import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from permafrost.storage.durable import json_bytes, read_json
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.groups import write_groups
from permafrost.storage.features.projections import (
    read_projection,
    stored_projections,
    write_projection,
)
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.segments import segment_path, table_copy
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import Damage, discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.storage.conftest import Shared
from tests.storage.small_store import IDENTITY, SmallStore, filled_store, flip, snapshot

CELL = "hidden/1"


def _verify(store: FeatureStore) -> list[Damage]:
    return verify(store, SilentProgress())


def _places(damage: Iterable[Damage]) -> list[tuple[int | None, str | None]]:
    return [(d.segment, d.array) for d in damage]


def _repair(small: SmallStore, damage: list[Damage]) -> dict[int, tuple[str, ...]]:
    """What `permafrost repair` does, with the rows of this test in place of the backbone's."""
    with writing(small.store) as writer:
        dropped = discard(writer, damage)
        for number, arrays in dropped.items():
            small.fill(writer, number, list(arrays), np.random.default_rng(0))
    return dropped


def _swap(first: Path, second: Path) -> None:
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def _cell(store: FeatureStore) -> Path:
    return store.shard_path(1, CELL)


CELL_DAMAGE: dict[str, Callable[[FeatureStore], object]] = {
    "a byte of a chunk": lambda s: flip(_cell(s), 5),
    "a byte of a chunk's checksum": lambda s: flip(_cell(s), 8 * 16 + 1),
    "a byte of the last chunk's padding": lambda s: flip(_cell(s), -16 * 8 - 4 - 6),
    "a byte of the index": lambda s: flip(_cell(s), -40),
    "a byte of the index's checksum": lambda s: flip(_cell(s), -2),
    "a shorter shard": lambda s: _cell(s).write_bytes(_cell(s).read_bytes()[:-1]),
    "a longer shard": lambda s: _cell(s).write_bytes(_cell(s).read_bytes() + b"0"),
    "an empty shard": lambda s: _cell(s).write_bytes(b""),
    "no shard": lambda s: _cell(s).unlink(),
    "a shard of another array": lambda s: shutil.copy(
        s.shard_path(1, "attention_rows/1"), _cell(s)
    ),
    "a whole shard of another segment": lambda s: shutil.copy(s.shard_path(0, CELL), _cell(s)),
    "a byte of the receipt": lambda s: flip(receipt_path(s.root, 1, CELL), 200, mask=0x01),
    "an empty receipt": lambda s: receipt_path(s.root, 1, CELL).write_text(""),
    "a number in the receipt": lambda s: _edit(
        receipt_path(s.root, 1, CELL), '"nonfinite": 0', '"nonfinite": 1'
    ),
    "a receipt of another segment": lambda s: shutil.copy(
        receipt_path(s.root, 0, CELL), receipt_path(s.root, 1, CELL)
    ),
}


def _edit(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert content.count(old) == 1
    path.write_text(content.replace(old, new))


def test_an_undamaged_store_verifies(either_codec: SmallStore) -> None:
    write_projection(either_codec.store, 1, np.eye(8, dtype=np.float32), None)
    assert _verify(either_codec.store) == []


@pytest.mark.few(4)
@pytest.mark.parametrize("what", CELL_DAMAGE)
def test_damage_to_a_cell_is_found_named_and_repaired_alone(
    either_codec: SmallStore, what: str
) -> None:
    store = either_codec.store
    assert _verify(store) == []
    CELL_DAMAGE[what](store)
    damage = _verify(store)
    assert _places(damage) == [(1, CELL)]
    assert "hidden/1" in damage[0].problem
    _check_exact_repair(either_codec, damage)


def _check_exact_repair(small: SmallStore, damage: list[Damage]) -> None:
    store = small.store
    # The root says meanwhile that the cell is not complete.
    group = store.zarr_path / "zarr.json"
    mine = (_cell(store), receipt_path(store.root, 1, CELL), store.root / "writer.lock", group)
    before, of_group = snapshot(store.root, besides=mine), group.read_bytes()
    with writing(store) as writer:
        assert discard(writer, damage) == {1: (CELL,)}
        assert not _cell(store).exists()
        assert store.missing_cells(store.segments(), [CELL]) == {1: (CELL,)}
        small.fill(writer, 1, [CELL], np.random.default_rng(0))
    assert snapshot(store.root, besides=mine) == before
    assert group.read_bytes() == of_group
    assert _verify(store) == []


def test_swapped_shards_of_two_segments_are_both_found(either_codec: SmallStore) -> None:
    store = either_codec.store
    _swap(store.shard_path(0, CELL), store.shard_path(1, CELL))
    damage = _verify(store)
    assert _places(damage) == [(0, CELL), (1, CELL)]
    assert _repair(either_codec, damage) == {0: (CELL,), 1: (CELL,)}
    assert _verify(store) == []


def test_a_whole_cell_of_another_store_is_found(small: SmallStore, tmp_path: Path) -> None:
    identity = IDENTITY.model_copy(update={"storage_dtype": "bfloat16"})
    other = filled_store(tmp_path / "other", dtype="bfloat16").store
    assert other.store_id == identity.store_id
    for path in (_cell, lambda s: receipt_path(s.root, 1, CELL)):
        shutil.copy(path(other), path(small.store))
    damage = _verify(small.store)
    assert _places(damage) == [(1, CELL)]
    assert f"belongs to store {other.store_id}, this is {small.store.store_id}" in damage[0].problem


TABLE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "flip": lambda p: flip(p, 60),
    "flip late": lambda p: flip(p, -200),
    "truncate": lambda p: p.write_bytes(p.read_bytes()[:-20]),
    "empty": lambda p: p.write_bytes(b""),
    "another segment": lambda p: shutil.copy(p.with_name("000000.parquet"), p),
    "rewritten": lambda p: pq.write_table(pq.read_table(p), p, compression="none"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("what", TABLE_DAMAGE)
def test_a_damaged_table_costs_its_segment_and_nothing_else(small: SmallStore, what: str) -> None:
    store = small.store
    lost = set(store.segment(1).table.column("text").to_pylist())
    path = segment_path(store.root, 1)
    table_copy(store.root, 1).unlink()
    TABLE_DAMAGE[what](path)
    damage = _verify(store)
    assert _places(damage) == [(1, None)]
    assert "000001.parquet" in damage[0].problem or "segment 1" in damage[0].problem
    with writing(store):
        assert not table_copy(store.root, 1).exists(), "a damaged table was copied"
    mine = [store.root / "writer.lock", store.zarr_path / "zarr.json"]
    before = snapshot(store.root, besides=mine)
    others = {n: f for n, f in before.items() if not re.search(r"/c/1(/|$)|000001", n)}
    n_slots = store.n_slots()
    with writing(store) as writer:
        assert discard(writer, damage) == {}
    assert snapshot(store.root, besides=mine) == others
    assert _verify(store) == []
    known = store.locate(small.digests).segment >= 0
    assert {t for t, k in zip(small.texts, known, strict=True) if not k} == lost
    # The number is not used again: a stray shard of it would be taken for the new one's.
    assert store.n_slots() == n_slots


@pytest.mark.few(2)
@pytest.mark.parametrize("what", [*TABLE_DAMAGE, "lost"])
def test_a_damaged_table_is_restored_from_its_copy_and_no_byte_of_an_array_changes(
    small: SmallStore, what: str
) -> None:
    store = small.store
    lock = [store.root / "writer.lock"]
    path = segment_path(store.root, 1)
    before = {n: content for n, (_, content) in snapshot(store.root, besides=lock).items()}
    arrays = snapshot(store.zarr_path)
    {**TABLE_DAMAGE, "lost": Path.unlink}[what](path)
    assert _places(_verify(store)) == [(1, None)]
    mended = mend(store.root, SilentProgress())
    assert (mended.restored_tables, mended.dropped_segments, mended.cells) == ([1], [], {})
    assert {n: content for n, (_, content) in snapshot(store.root, besides=lock).items()} == before
    assert snapshot(store.zarr_path) == arrays
    assert _verify(store) == []


@pytest.mark.parametrize("how", ["flip", "another", "lost"])
def test_a_damaged_copy_of_a_table_is_named_and_written_again(small: SmallStore, how: str) -> None:
    copy = table_copy(small.store.root, 1)
    whole = copy.read_bytes()
    match how:
        case "flip":
            flip(copy, 60)
        case "another":
            shutil.copy(table_copy(small.store.root, 0), copy)
        case _:
            copy.unlink()
    damage = _verify(small.store)
    assert len(damage) == (how != "lost")
    assert all("is not a copy of" in d.problem for d in damage)
    mend(small.store.root, SilentProgress())
    assert copy.read_bytes() == whole
    assert _verify(small.store) == []


def test_behind_a_restored_table_other_damage_is_found_too(small: SmallStore) -> None:
    flip(segment_path(small.store.root, 1), 60)
    flip(_cell(small.store), 5)
    mended = mend(small.store.root, SilentProgress())
    assert (mended.restored_tables, mended.cells) == ([1], {1: (CELL,)})
    assert set(mended.receipts) == {(1, CELL)}


def test_readers_by_segment_say_that_a_table_is_lost(small: SmallStore) -> None:
    segment_path(small.store.root, 1).unlink()
    store = FeatureStore.open(small.store.root)
    for read in (store.segments, store.arrays, lambda: store.locate(small.digests)):
        with pytest.raises(CorruptDataError, match=r"table of segment 1 .* is gone"):
            read()
    with pytest.raises(CorruptDataError, match="is gone"):
        small.add(["another text"], [3])


def test_a_lost_table_is_found_by_its_receipts(small: SmallStore) -> None:
    segment_path(small.store.root, 1).unlink()
    table_copy(small.store.root, 1).unlink()
    damage = _verify(small.store)
    assert _places(damage) == [(1, None)]
    assert "receipts but no table" in damage[0].problem
    assert _repair(small, damage) == {}
    assert _verify(small.store) == []


def test_swapped_tables_are_found(small: SmallStore) -> None:
    _swap(segment_path(small.store.root, 0), segment_path(small.store.root, 1))
    assert _places(_verify(small.store)) == [(0, None), (1, None)]


def test_rows_that_overlap_in_a_table_are_found(small: SmallStore) -> None:
    number = small.add(["uncommitted"], [3], [])[0]
    for path in (small.store.root / "receipts" / f"{number:06d}").rglob("*.json"):
        path.unlink()
    write_groups(small.store)
    path = segment_path(small.store.root, number)
    table = pq.read_table(path)
    shifted = table.column("token_start").to_numpy() + 1
    index = table.column_names.index("token_start")
    pq.write_table(table.set_column(index, table.schema.field(index), [shifted]), path)
    damage = _verify(small.store)
    assert _places(damage) == [(number, None)]
    assert "not contiguous" in damage[0].problem


@pytest.mark.few(3)
@pytest.mark.parametrize("array", ["hidden/1", "pooled/hidden_mean/1", "token_ids"])
@pytest.mark.parametrize("how", ["flip", "remove", "shape"])
def test_damaged_metadata_is_named_and_written_again_without_dropping_a_cell(
    small: SmallStore, array: str, how: str
) -> None:
    store = small.store
    path = store.zarr_path / array / "zarr.json"
    whole = path.read_bytes()
    match how:
        case "flip":
            flip(path, 100, mask=0x01)
        case "remove":
            path.unlink()
        case _:
            content = json.loads(whole)
            content["shape"][0] = 1
            path.write_text(json.dumps(content))
    damage = _verify(store)
    assert _places(damage) == [(None, array)]
    assert str(path) in damage[0].problem
    committed = {s: store.committed(s) for s in store.segments()}
    assert _repair(small, damage) == {}
    assert path.read_bytes() == whole
    assert {s: store.committed(s) for s in store.segments()} == committed
    assert _verify(store) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("group", ["", "hidden", "pooled", "pooled/hidden_mean"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_damaged_groups_are_found_and_written_again(
    small: SmallStore, group: str, how: str
) -> None:
    path = small.store.zarr_path / group / "zarr.json"
    _damage_file(path, how)
    damage = _verify(small.store)
    assert len(damage) == 1
    assert str(path) in damage[0].problem
    _repair(small, damage)
    assert _verify(small.store) == []


def _damage_file(path: Path, how: str) -> None:
    if how == "flip":
        flip(path, 20, mask=0x01)
    else:
        path.unlink()


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["flip", "remove"])
@pytest.mark.parametrize("group", ["", "o_proj", "o_proj_bias"])
def test_damaged_groups_of_projections_are_found_and_written_again(
    small: SmallStore, group: str, how: str
) -> None:
    write_projection(small.store, 1, np.eye(8, dtype=np.float32), np.ones(8, np.float32))
    path = small.store.zarr_path / "projections" / group / "zarr.json"
    _damage_file(path, how)
    damage = _verify(small.store)
    assert len(damage) == 1
    assert str(path) in damage[0].problem
    _repair(small, damage)
    assert _verify(small.store) == []
    assert stored_projections(small.store) == [1]


@pytest.mark.parametrize(
    "name",
    ["o_proj/1/c/0/0", "o_proj/1/zarr.json", "o_proj_bias/1/c/0", "o_proj_bias/1/zarr.json"],
)
def test_a_damaged_projection_is_named_and_dropped_alone(small: SmallStore, name: str) -> None:
    eye = np.eye(8, dtype=np.float32)
    for block in (1, 2):
        write_projection(small.store, block, eye, np.ones(8, np.float32))
    flip(small.store.zarr_path / "projections" / name, 30, mask=0x01)
    damage = _verify(small.store)
    assert _places(damage) == [(None, "projections/o_proj/1")]
    assert _repair(small, damage) == {}
    assert stored_projections(small.store) == [2]
    assert np.array_equal(read_projection(small.store, 2)[0], eye)
    assert _verify(small.store) == []


def test_a_receipt_for_an_array_that_cannot_be_is_named_and_dropped(small: SmallStore) -> None:
    stray = receipt_path(small.store.root, 0, "hiden/1")
    stray.parent.mkdir()
    shutil.copy(receipt_path(small.store.root, 0, CELL), stray)
    damage = _verify(small.store)
    assert _places(damage) == [(0, "hiden/1")]
    with writing(small.store) as writer:
        discard(writer, damage)
    assert _verify(small.store) == []


def test_several_kinds_of_damage_are_repaired_together(small: SmallStore) -> None:
    store = small.store
    flip(store.shard_path(0, CELL), 5)
    flip(store.shard_path(0, "span"), 5)
    flip(segment_path(store.root, 1), 60)
    table_copy(store.root, 1).unlink()
    (store.zarr_path / "token_ids" / "zarr.json").unlink()
    damage = _verify(store)
    assert set(_places(damage)) == {(0, CELL), (0, "span"), (1, None), (None, "token_ids")}
    assert _repair(small, damage) == {0: (CELL, "span")}
    assert _verify(store) == []


def test_a_copy_of_the_files_alone_is_as_long_as_the_store(
    small: SmallStore, tmp_path: Path
) -> None:
    """A segment was dropped and left an empty folder of receipts, which no object store has."""
    (small.store.root / "receipts" / "000007").mkdir()
    with writing(small.store) as writer:
        writer.declare(("hidden/2",))
    assert (_verify(small.store), small.store.n_slots()) == ([], 8)
    copy = tmp_path / "copy" / small.store.root.name
    for path in filter(Path.is_file, small.store.root.rglob("*")):
        to = copy / path.relative_to(small.store.root)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    found = FeatureStore.open(copy)
    assert not (copy / "receipts" / "000007").exists()
    assert (_verify(found), found.n_slots()) == ([], 8)


def test_a_length_that_one_array_alone_has_is_not_the_stores(small: SmallStore) -> None:
    n, path = small.store.n_slots(), small.store.zarr_path / "span" / "zarr.json"
    content = read_json(path)
    content["shape"][0] *= 1000
    path.write_bytes(json_bytes(content))
    assert small.store.n_slots() == n
    assert _places(_verify(small.store)) == [(None, "span")]


def test_verifying_changes_nothing(shared: Shared) -> None:
    store = shared("none", "float16").store
    before = snapshot(store.root)
    assert _verify(store) == []
    assert snapshot(store.root) == before


def test_progress_counts_every_cell_and_ends(small: SmallStore) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.total, self.done, self.ended = 0.0, 0.0, 0

        def start(self, task: str, total: float, unit: str) -> None:
            assert (task, unit) == ("verify", "cells")
            self.total = total

        def advance(self, amount: float, note: str = "") -> None:
            self.done += amount

        def finish(self) -> None:
            self.ended += 1

    recorder = Recorder()
    verify(small.store, recorder)
    n_cells = sum(len(small.store.committed(s)) for s in small.store.segments())
    assert (recorder.done, recorder.total, recorder.ended) == (n_cells, n_cells, 1)
