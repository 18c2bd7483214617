import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from permafrost.storage import artifacts
from permafrost.storage.artifacts import (
    ArtifactRef,
    ArtifactSpec,
    ArtifactStore,
    parse_ref,
)
from permafrost.storage.drafts import DRAFT_PREFIX, RUNNING_S, STALE_S
from permafrost.storage.errors import CorruptDataError, DiskFullError, InputError, NotFoundError
from permafrost.storage.sealed import sealed_bytes
from permafrost.storage.spent import record_spent
from tests.storage.small_store import flip, snapshot

SPEC = ArtifactSpec(stage="fit", config={"lr": 0.1}, inputs=(), code={"a:b": "1"})


def _publish(
    store: ArtifactStore, spec: ArtifactSpec = SPEC, content: bytes = b"weights"
) -> ArtifactRef:
    with store.publishing(spec, {"device": "cpu"}) as draft:
        (draft.folder / "head.bin").write_bytes(content)
        (draft.folder / "sub").mkdir()
        (draft.folder / "sub" / "x.json").write_text("{}")
        draft.summary["loss"] = 0.5
    return spec.ref


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def _many(store: ArtifactStore, n: int) -> list[ArtifactRef]:
    return [_publish(store, SPEC.model_copy(update={"config": {"lr": i}})) for i in range(n)]


def test_a_published_artifact_is_found_with_all_it_was_given(store: ArtifactStore) -> None:
    assert not store.is_done(SPEC.ref)
    ref = _publish(store)
    assert store.is_done(ref)
    assert (store.open(ref) / "head.bin").read_bytes() == b"weights"
    manifest = store.manifest(ref)
    assert manifest.spec == SPEC
    assert manifest.ref == ref
    assert manifest.summary == {"loss": 0.5}
    assert manifest.provenance["device"] == "cpu"
    assert set(manifest.files) == {"head.bin", "sub/x.json"}
    assert store.problems(ref) == []


def test_an_artifact_of_an_older_version_of_keys_is_whole_but_not_reused(
    store: ArtifactStore,
) -> None:
    folder = store.folder(_publish(store))
    manifest = store.manifest(SPEC.ref)
    old = SPEC.ref_of(manifest.key_version - 1)
    assert old != SPEC.ref
    older = manifest.model_copy(update={"key": old.key, "key_version": manifest.key_version - 1})
    (folder / "artifact.json").write_bytes(sealed_bytes(older.model_dump(mode="json")))
    folder.rename(store.folder(old))
    assert store.manifest(old) == older
    assert store.problems(old) == []
    assert (store.open(old) / "head.bin").read_bytes() == b"weights"
    assert [m.ref for m in store.all()] == [old]
    assert not store.is_done(SPEC.ref), "what a key is made of has changed since"


def test_the_seconds_of_killed_processes_count_too(store: ArtifactStore) -> None:
    checkpoint = store.checkpoints(SPEC.ref) / "fit.pt"
    checkpoint.parent.mkdir(parents=True)
    record_spent(checkpoint, 100.0, 50.0)
    with store.publishing(SPEC, {}) as draft:
        (draft.folder / "a").write_text("a")
    # Those of the process that publishes are measured anew.
    assert 100 <= store.manifest(SPEC.ref).provenance["seconds"] < 140
    assert not checkpoint.parent.exists()


def test_a_stage_that_fails_publishes_nothing_and_leaves_nothing(store: ArtifactStore) -> None:
    def stage() -> None:
        with store.publishing(SPEC, {}) as draft:
            (draft.folder / "half").write_text("x")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        stage()
    assert not store.is_done(SPEC.ref)
    assert [p for p in store.root.rglob("*") if p.is_file()] == []
    assert list((store.root / "fit").iterdir()) == []


def test_a_full_disk_publishes_nothing(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    def stage() -> None:
        with store.publishing(SPEC, {}) as draft:
            (draft.folder / "half").write_text("x")
            monkeypatch.setattr(os, "fsync", no_room)

    with pytest.raises(DiskFullError, match="no room"):
        stage()
    assert list((store.root / "fit").iterdir()) == []


def test_two_writers_of_one_key_leave_one_whole_artifact(store: ArtifactStore) -> None:
    with store.publishing(SPEC, {}) as slow:
        (slow.folder / "head.bin").write_bytes(b"slow")
        _publish(store, content=b"fast")
    assert (store.open(SPEC.ref) / "head.bin").read_bytes() == b"fast"
    assert [p.name for p in (store.root / "fit").iterdir()] == [SPEC.ref.key]


def test_what_is_made_again_stays_until_there_is_another(store: ArtifactStore) -> None:
    ref = _publish(store, content=b"old")

    def stage(content: bytes) -> None:
        with store.publishing(SPEC, {}, again=True) as draft:
            (draft.folder / "head.bin").write_bytes(content)
            assert (store.open(ref) / "head.bin").read_bytes() == b"old"
            if not content:
                raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        stage(b"")
    assert (store.open(ref) / "head.bin").read_bytes() == b"old"
    stage(b"new")
    assert (store.open(ref) / "head.bin").read_bytes() == b"new"
    assert [p.name for p in (store.root / "fit").iterdir()] == [ref.key]


def test_what_cannot_be_replaced_comes_back(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = _publish(store, content=b"old")

    def no_room(draft: Path, target: Path) -> None:
        assert not target.exists()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(artifacts, "_rename", no_room)
    with pytest.raises(DiskFullError), store.publishing(SPEC, {}, again=True) as draft:
        (draft.folder / "head.bin").write_bytes(b"new")
    assert (store.open(ref) / "head.bin").read_bytes() == b"old"
    assert [p.name for p in (store.root / "fit").iterdir()] == [ref.key]


def test_a_folder_without_manifest_is_not_done_and_is_replaced(store: ArtifactStore) -> None:
    ref = _publish(store, content=b"old")
    (store.folder(ref) / "artifact.json").unlink()
    assert not store.is_done(ref)
    with pytest.raises(NotFoundError, match=f"no artifact {ref}"):
        store.open(ref)
    _publish(store, content=b"new")
    assert (store.open(ref) / "head.bin").read_bytes() == b"new"
    assert [p.name for p in (store.root / "fit").iterdir()] == [ref.key]


def test_a_changed_byte_is_found(store: ArtifactStore) -> None:
    ref = _publish(store)
    flip(store.folder(ref) / "head.bin", 3)
    with pytest.raises(CorruptDataError, match=r"checksum of .*head\.bin .*permafrost repair"):
        store.open(ref)


def test_a_truncated_file_is_found_with_both_sizes(store: ArtifactStore) -> None:
    ref = _publish(store)
    (store.folder(ref) / "head.bin").write_bytes(b"wei")
    with pytest.raises(CorruptDataError, match="has 3 bytes, its manifest says 7"):
        store.open(ref)


def test_a_missing_file_is_found(store: ArtifactStore) -> None:
    ref = _publish(store)
    (store.folder(ref) / "sub" / "x.json").unlink()
    with pytest.raises(CorruptDataError, match=r"x\.json is missing"):
        store.open(ref)
    assert len(store.problems(ref)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("config", {"lr": 0.2}), ("inputs", ["corpus/" + "0" * 32]), ("code", {}), ("stage", "embed")],
)
def test_a_manifest_changed_by_hand_no_longer_fits_its_key(
    store: ArtifactStore, field: str, value: object
) -> None:
    ref = _publish(store)
    path = store.folder(ref) / "artifact.json"
    content = json.loads(path.read_text())
    content["spec"][field] = value
    del content["checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptDataError, match="changed by hand"):
        store.manifest(ref)
    assert len(store.problems(ref)) == 1
    assert list(store.all()) == []
    assert store.refs() == [ref]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key": 1}', b"\xff"])
def test_a_damaged_manifest_is_corrupt_and_can_be_removed(
    store: ArtifactStore, content: bytes
) -> None:
    ref = _publish(store)
    (store.folder(ref) / "artifact.json").write_bytes(content)
    with pytest.raises(CorruptDataError):
        store.open(ref)
    assert store.problems(ref)
    assert store.refs() == [ref]
    store.remove(ref)
    _publish(store)
    assert store.problems(ref) == []


def test_a_manifest_of_another_key_is_corrupt(store: ArtifactStore) -> None:
    first, second = _many(store, 2)
    shutil.copy(store.folder(first) / "artifact.json", store.folder(second) / "artifact.json")
    with pytest.raises(CorruptDataError, match=f"describes {first}, expected {second}"):
        store.open(second)


def test_all_lists_oldest_first_and_by_stage(store: ArtifactStore) -> None:
    refs = _many(store, 3)
    other = _publish(store, SPEC.model_copy(update={"stage": "score"}))
    for age, ref in enumerate([*refs, other]):
        os.utime(store.folder(ref) / "artifact.json", (age, age))
    assert [m.ref for m in store.all()] == [*refs, other]
    assert [m.ref for m in store.all("fit")] == refs
    assert [m.ref for m in store.all("corpus")] == []


def test_find_takes_a_key_a_beginning_and_a_stage(store: ArtifactStore) -> None:
    ref = _publish(store)
    for name in (ref.key, ref.key[:6], str(ref), f"fit/{ref.key[:4]}"):
        assert store.find(name) == ref


def test_find_refuses_what_is_ambiguous_or_not_there(store: ArtifactStore) -> None:
    refs = _many(store, 17)  # more than there are first digits
    first = [r.key[0] for r in refs]
    twice = next(d for d in first if first.count(d) > 1)
    with pytest.raises(InputError, match=r"ambiguous.*give more digits"):
        store.find(twice)
    with pytest.raises(NotFoundError, match="no artifact begins with"):
        store.find("0" * 32)
    for name in ("", "fit/", "not-hex", "*", "../x"):
        with pytest.raises(NotFoundError, match="is not a key"):
            store.find(name)


def test_remove_takes_one_artifact_and_leaves_the_others(store: ArtifactStore) -> None:
    first, second = _many(store, 2)
    before = snapshot(store.folder(second))
    store.remove(first)
    assert not store.folder(first).exists()
    assert snapshot(store.folder(second)) == before
    assert [p.name for p in (store.root / "fit").iterdir()] == [second.key]


def test_a_removal_that_is_killed_leaves_a_draft_and_no_artifact(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = _publish(store)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(ref)
    assert not store.is_done(ref)
    assert store.refs() == []
    _publish(store)
    assert store.problems(ref) == []


def test_only_drafts_that_no_run_can_own_are_stale(store: ArtifactStore) -> None:
    with store.publishing(SPEC, {}) as draft:
        _aged(draft.folder, 400 * 24 * 3600)
        assert store.stale_drafts() == [], "its process lives, however long it takes"
        elsewhere = draft.folder.with_name(f"{DRAFT_PREFIX}{SPEC.ref.key}-00000000.7.7-ab")
        checkpoint = draft.folder.with_name(f"{DRAFT_PREFIX}{SPEC.ref.key}-checkpoint")
        for path, limit_s in ((elsewhere, RUNNING_S), (checkpoint, STALE_S)):
            path.mkdir()
            _aged(path, limit_s - 60)
            assert store.stale_drafts() == []
            _aged(path, limit_s + 60)
            assert store.stale_drafts() == [path]
            path.rmdir()


def _aged(path: Path, age_s: float) -> None:
    then = time.time() - age_s
    os.utime(path, (then, then))


def test_a_reference_reads_back_from_its_text() -> None:
    assert parse_ref(str(SPEC.ref)) == SPEC.ref
    with pytest.raises(AssertionError, match="<stage>/<key>"):
        parse_ref("fit/abc")


@pytest.mark.parametrize("old", ['"loss": 0.5', '"device": "cpu"'])
def test_what_a_manifest_says_beside_its_key_has_a_checksum_too(
    store: ArtifactStore, old: str
) -> None:
    ref = _publish(store)
    path = store.folder(ref) / "artifact.json"
    whole = path.read_text()
    assert whole.count(old) == 1
    path.write_text(whole.replace(old, old.replace("5", "6").replace("cpu", "gpu")))
    with pytest.raises(CorruptDataError, match="is damaged"):
        store.manifest(ref)
    assert store.problems(ref)
    assert list(store.all()) == []
    content = json.loads(whole)
    del content["checksum"]  # as in artifacts of an earlier version
    path.write_text(json.dumps(content))
    assert store.manifest(ref).summary == {"loss": 0.5}


@pytest.mark.parametrize("name", ["artifact.json", "head.bin"])
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_folder_or_a_dangling_link_in_the_place_of_a_file_is_named_and_made_again(
    store: ArtifactStore, name: str, how: str
) -> None:
    ref = _publish(store)
    path = store.folder(ref) / name
    path.unlink()
    if how == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    assert store.refs() == [ref]
    assert len(store.problems(ref)) == 1
    with pytest.raises(CorruptDataError, match=name.replace(".", r"\.")):
        store.open(ref)
    store.remove(ref)
    assert store.refs() == []
    _publish(store)
    assert store.problems(ref) == []


def test_a_folder_that_cannot_be_flushed_is_a_full_disk_and_what_has_its_name_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, flush = ArtifactStore(tmp_path), os.fsync

    def no_room(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / "artifacts" / "fit":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(DiskFullError, match="no room to write"), store.publishing(SPEC, {}):
            pass
    assert store.is_done(SPEC.ref)
    assert store.problems(SPEC.ref) == []
