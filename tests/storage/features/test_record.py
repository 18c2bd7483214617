"""`store.json` damaged but still valid JSON: named, never written by, and rebuilt."""

import contextlib
import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import zarr

from permafrost.flows.damage import store_problems
from permafrost.storage.errors import CorruptDataError, PermafrostError
from permafrost.storage.features import store as stores
from permafrost.storage.features.rebuilding import rebuild_record
from permafrost.storage.features.record import (
    LAST_RESORT,
    StoreRecord,
    copy_path,
    read_record,
    record_path,
)
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.segments import table_copy
from permafrost.storage.features.store import FeatureStore, store_folders
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.sealed import sealed_bytes
from tests.diagonal import diagonal
from tests.storage.conftest import Shared
from tests.storage.small_store import AXES, IDENTITY, SIZES, SmallStore, new_store, snapshot

FORMATS = Path(__file__).parents[2] / "formats" / "v1"
CHANGES = {
    "axes.segment_tokens": (32, 65, 128),
    "axes.segment_texts": (4, 9, 16),
    "axes.chunk_bytes": (64, 256, 1 << 20),
    "sizes.n_layers": (3,),
    "sizes.d_model": (9, 16),
    "sizes.d_value": (5, 8),
    "sizes.n_attn_heads": (3, 4),
    "codec": ("other",),
}
CASES = [(path, value) for path, values in CHANGES.items() for value in values]


def _change(root: Path, path: str, value: object) -> None:
    content = json.loads(record_path(root).read_text())
    *above, name = path.split(".")
    inner: dict[str, Any] = content
    for key in above:
        inner = inner[key]
    assert inner[name] != value
    inner[name] = value
    record_path(root).write_text(json.dumps(content, indent=1))


def _contents(root: Path) -> dict[str, bytes]:
    lock = [root / "writer.lock"]
    return {name: content for name, (_, content) in snapshot(root, besides=lock).items()}


def _as_before(root: Path) -> None:
    """What a store of an earlier version lacks."""
    content = json.loads(record_path(root).read_text())
    del content["checksum"]
    record_path(root).write_text(json.dumps(content, indent=1) + "\n")
    shutil.rmtree(root / "copies")


@pytest.mark.few(4)
@pytest.mark.parametrize(("path", "value"), CASES)
def test_another_value_is_damage_and_the_copy_brings_it_back(
    small: SmallStore, path: str, value: object
) -> None:
    root = small.store.root
    before = _contents(root)
    arrays = snapshot(small.store.zarr_path)
    _change(root, path, value)
    with pytest.raises(CorruptDataError, match=r"store\.json is damaged: its checksum"):
        FeatureStore.open(root)
    with pytest.raises(CorruptDataError, match="is damaged"), writing(small.store):
        raise AssertionError("it was opened for writing")
    assert snapshot(small.store.zarr_path) == arrays
    mended = mend(root, SilentProgress())
    assert len(mended.problems) == 1
    assert _contents(root) == before
    assert snapshot(small.store.zarr_path) == arrays


@pytest.mark.few(3)
@diagonal(
    {
        "path,value": [
            c for c in CASES if c[0] not in ("sizes.n_layers", "sizes.d_value", "codec")
        ],
        "codec": ["none", "zstd"],
    }
)
def test_without_checksum_and_copy_the_arrays_say_what_is_right(
    shared: Shared, tmp_path: Path, codec: str, path: str, value: object
) -> None:
    """As in stores of an earlier version. What no array of the store shows cannot be known there."""
    root = tmp_path / IDENTITY.store_id
    shutil.copytree(shared(codec, "float16").store.root, root)  # type: ignore[arg-type]
    _as_before(root)
    right = read_record(root)
    before = snapshot(root / "features.zarr")
    _change(root, path, value)
    assert store_problems(root, SilentProgress()), "verify is silent"
    with pytest.raises(CorruptDataError, match=r"nothing was written|is damaged"):
        SmallStore(FeatureStore.open(root)).add(["a text"], [2])
    mend(root, SilentProgress())
    rebuilt = read_record(root)
    assert rebuilt.axes.segment_tokens == right.axes.segment_tokens
    assert rebuilt.axes.segment_texts == right.axes.segment_texts
    assert (rebuilt.sizes, rebuilt.codec) == (right.sizes, right.codec)
    assert snapshot(root / "features.zarr") == before
    assert verify(FeatureStore.open(root), SilentProgress()) == []
    group = zarr.open_group(root / "features.zarr", mode="r")
    assert group["hidden/1"][0].shape == (8,)  # type: ignore[index, union-attr]


def test_a_value_that_no_array_shows_is_compared_with_the_backbone(tmp_path: Path) -> None:
    root = new_store(tmp_path).store.root
    _as_before(root)
    _change(root, "sizes.n_layers", 3)
    with pytest.raises(CorruptDataError, match=r"n_layers=3.*n_layers=2"):
        new_store(tmp_path)


@pytest.mark.few(4)
@pytest.mark.parametrize("which", ["store.json", "copy"])
@pytest.mark.parametrize(
    "how", ["delete", "folder", "link", "empty", "list", "no checksum", "sealed"]
)
def test_either_file_is_written_again_from_the_other(
    small: SmallStore, which: str, how: str
) -> None:
    root = small.store.root
    before = _contents(root)
    path = record_path(root) if which == "store.json" else copy_path(root)
    content = json.loads(path.read_text())
    path.unlink()
    match how:
        case "folder":
            (path / "inside").mkdir(parents=True)
        case "link":
            path.symlink_to("nowhere")
        case "empty" | "list":
            path.write_text("" if how == "empty" else "[]")
        case "sealed":  # a file of ours of another kind, whole
            path.write_bytes(sealed_bytes({"run": "first@1"}))
        case "no checksum":
            del content["checksum"]
            content["axes"]["segment_texts"] = 16
            path.write_text(json.dumps(content))
        case _:
            pass
    assert store_folders(root.parents[1]) == [root]
    mend(root, SilentProgress())
    assert _contents(root) == before


def test_if_both_are_damaged_nothing_is_changed(small: SmallStore) -> None:
    root = small.store.root
    for path in (record_path(root), copy_path(root)):
        path.write_text(path.read_text().replace('"d_model": 8', '"d_model": 9'))
    before = _contents(root)
    with pytest.raises(CorruptDataError, match=r"cannot be rebuilt: .*from a backup"):
        mend(root, SilentProgress())
    assert _contents(root) == before


@pytest.mark.parametrize("record", ["gone", "damaged"])
@pytest.mark.parametrize("copy", ["gone", "damaged"])
def test_without_a_copy_to_take_it_from_repair_is_not_promised(
    small: SmallStore, record: str, copy: str
) -> None:
    root = small.store.root
    for path, state in ((record_path(root), record), (copy_path(root), copy)):
        path.unlink() if state == "gone" else path.write_text("{}")
    advice = f"its copy {copy_path(root)} is gone or damaged as well: {LAST_RESORT}"
    with pytest.raises(CorruptDataError, match=rf"store\.json is {record}.*{re.escape(advice)}$"):
        read_record(root)
    with pytest.raises(CorruptDataError, match=LAST_RESORT):
        mend(root, SilentProgress())


def test_a_record_that_lost_its_checksum_is_repaired_also_without_a_copy_to_take_it_from(
    small: SmallStore,
) -> None:
    root = small.store.root
    content = json.loads(record_path(root).read_text())
    del content["checksum"]
    record_path(root).write_text(json.dumps(content))
    copy_path(root).write_text("{}")
    with pytest.raises(CorruptDataError, match=r"lost its checksum.*repair .* writes it again"):
        read_record(root)
    mend(root, SilentProgress())
    assert read_record(root) == small.store.record


def test_a_whole_record_of_other_sizes_does_not_win_over_the_arrays(
    small: SmallStore, tmp_path: Path
) -> None:
    """For example of the same store in another home: every checksum fits."""
    axes = AXES.model_copy(update={"segment_tokens": 128})
    other = new_store(tmp_path / "other", axes=axes).store
    shutil.copy(record_path(other.root), record_path(small.store.root))
    damage = verify(FeatureStore.open(small.store.root), SilentProgress())
    assert all("says segments of 128 rows" in d.problem for d in damage[:-1])
    mend(small.store.root, SilentProgress())
    assert read_record(small.store.root) == small.store.record


def test_a_record_in_the_folder_of_another_store_is_refused(
    small: SmallStore, tmp_path: Path
) -> None:
    identity = IDENTITY.model_copy(update={"max_length": 16})
    other = new_store(tmp_path / "other", identity=identity).store
    shutil.copy(record_path(other.root), record_path(small.store.root))
    with pytest.raises(CorruptDataError, match=f"is of store {other.store_id}"):
        FeatureStore.open(small.store.root)
    assert rebuild_record(small.store.root) == small.store.record


def test_the_checksum_is_of_the_canonical_json_of_all_other_fields(small: SmallStore) -> None:
    for path in (record_path(small.store.root), copy_path(small.store.root)):
        content = json.loads(path.read_text())
        assert content.pop("checksum") == digest(content)
        assert content["format_version"] == 1
        assert content["sizes"] == SIZES.model_dump()


def test_an_old_store_gains_checksum_and_copies_when_it_is_next_written(tmp_path: Path) -> None:
    shutil.copytree(FORMATS, tmp_path, dirs_exist_ok=True)
    for root in store_folders(tmp_path):
        before = _contents(root)
        store = FeatureStore.open(root)
        assert verify(store, SilentProgress()) == []
        assert _contents(root) == before
        with writing(store):
            pass
        after = _contents(root)
        tables = {f"copies/{n:06d}.parquet" for n in store.segments()}
        assert set(after) - set(before) == {"copies/store.json", *tables}
        changed = {n for n in before if after[n] != before[n]}
        groups = {n for n in changed if n.endswith("zarr.json") and b'"group"' in before[n]}
        assert changed - groups == {"store.json"}
        assert read_record(root) == store.record
        assert json.loads(record_path(root).read_text())["checksum"]
        for number in store.segments():
            table = root / "segments" / f"{number:06d}.parquet"
            assert table_copy(root, number).read_bytes() == table.read_bytes()
        assert verify(store, SilentProgress()) == []


@pytest.mark.parametrize("name", ["writer.lock"])
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_lock_that_is_no_file_is_named_and_removed(
    small: SmallStore, name: str, how: str
) -> None:
    path = small.store.root / name
    path.unlink()
    if how == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    (found,) = verify(small.store, SilentProgress())
    assert "nobody can write" in found.problem
    with pytest.raises(PermafrostError, match=r"cannot write .*writer\.lock"), writing(small.store):
        raise AssertionError("it was locked")
    mend(small.store.root, SilentProgress())
    assert path.is_file()
    assert verify(small.store, SilentProgress()) == []


def test_no_digit_of_an_old_record_can_change_without_an_error_or_the_same_numbers(
    tmp_path: Path,
) -> None:
    """Each digit of axes and sizes; a store of an earlier version, which has no checksum."""
    shutil.copytree(FORMATS, tmp_path, dirs_exist_ok=True)
    root = store_folders(tmp_path)[0]
    whole = record_path(root).read_text()
    store = FeatureStore.open(root)
    rows = {a: store.open_shard(0, a).read(0, 3).tobytes() for a in ("hidden/1", "values/2")}
    first, last = whole.index('"axes"'), whole.index('"codec"')
    for at in (i for i in range(first, last) if whole[i].isdigit()):
        for digit in "09":
            record_path(root).write_text(whole[:at] + digit + whole[at + 1 :])
            for array, expected in rows.items():
                with contextlib.suppress(CorruptDataError):
                    found = FeatureStore.open(root).open_shard(0, array).read(0, 3)
                    assert found.tobytes() == expected
            store_problems(root, SilentProgress())


@pytest.mark.parametrize("shape", [[float("inf"), 8], [64, float("inf")], [None, 8], []])
def test_an_impossible_shape_in_an_array_is_put_right(small: SmallStore, shape: list[Any]) -> None:
    path = small.store.zarr_path / "hidden/1/zarr.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"shape": shape}))
    assert mend(small.store.root, SilentProgress()).problems
    assert json.loads(path.read_text()) == before


@pytest.mark.parametrize("links", [True, False])
def test_a_process_that_creates_a_store_late_takes_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    create, made = stores.create_record, list[SmallStore]()

    def create_late(root: Path, record: StoreRecord) -> bool:
        """After this process saw that there was none, another one has created and filled it."""
        monkeypatch.setattr(stores, "create_record", create)
        made.append(new_store(tmp_path, codec="none"))
        made[0].add(["one", "other"], [3, 4])
        return create(root, record)

    monkeypatch.setattr(stores, "create_record", create_late)
    late = new_store(tmp_path, codec="zstd").store
    assert late.record == made[0].store.record
    assert read_record(late.root) == late.record
    assert verify(late, SilentProgress()) == []
    assert zarr.open_group(late.zarr_path, mode="r").attrs["store_id"] == late.store_id


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("path", ["features.zarr/zarr.json", "store.json", "copies/store.json"])
def test_a_process_whose_drafts_another_writer_removes_while_it_creates_the_store_opens_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    flush, made = os.fsync, list[SmallStore]()
    folder, name = os.path.split(path)

    def flush_late(fd: int) -> None:
        """The draft of this file is flushed, and has not its name yet, when the other one begins to write."""
        draft = Path(f"/proc/self/fd/{fd}").readlink()
        if (
            not made
            and draft.name.startswith(f".draft-{name}")
            and str(draft.parent).endswith(folder)
        ):
            monkeypatch.setattr(os, "fsync", flush)
            made.append(new_store(tmp_path))
            made[0].add(["one", "other"], [3, 4])
            assert not draft.exists()
        flush(fd)

    monkeypatch.setattr(os, "fsync", flush_late)
    late = new_store(tmp_path).store
    assert made
    assert late.record == made[0].store.record
    assert verify(late, SilentProgress()) == []
    assert copy_path(late.root).read_bytes() == record_path(late.root).read_bytes()


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
