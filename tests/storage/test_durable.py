import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from permafrost.storage import durable
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import DRAFT_PREFIX, draft_path
from permafrost.storage.durable import (
    create_durably,
    holds,
    is_there,
    make_folder,
    read_json,
    remove,
    remove_tree,
    rewrite,
    write_durably,
    write_json,
)
from permafrost.storage.errors import CorruptDataError, DiskFullError, NotFoundError
from tests.storage.small_store import filled_store


def test_a_written_file_is_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    write_durably(tmp_path / "a" / "b.bin", b"first")
    write_durably(tmp_path / "a" / "b.bin", b"second")
    assert (tmp_path / "a" / "b.bin").read_bytes() == b"second"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.bin"]


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []
    path = tmp_path / "x"

    def fsync(fd: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
        flushed.append((kind, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_durably(path, b"content")
    assert flushed == [("file", False), ("folder", True)]


def test_the_names_of_new_folders_are_flushed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, fsync = set[Path](), os.fsync

    def note(fd: int) -> None:
        fsync(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            flushed.update(Path(f"/proc/self/fd/{fd}").readlink().iterdir())

    monkeypatch.setattr(os, "fsync", note)
    home = tmp_path / "new" / "home"
    filled_store(home, 4)
    spec = ArtifactSpec(stage="fit", config={}, inputs=(), code={"a:b": "1"})
    with ArtifactStore(home).publishing(spec, {}) as draft:
        (draft.folder / "head.bin").touch()
    folders = {p for p in (tmp_path / "new").rglob("*") if p.is_dir()} | {home.parent}
    assert len(folders) > 20
    assert folders <= flushed


def test_a_folder_is_made_in_one_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", denied)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})

    def no_room(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(DiskFullError, match=r"no room to write .*state\.json.*Free some space"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_other_errors_of_the_disk_keep_their_name(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), disk_errors_named(tmp_path / "not" / "there"):
        raise PermissionError(errno.EACCES, "denied")


def test_a_full_disk_is_named_when_a_library_gives_its_number_in_words(tmp_path: Path) -> None:
    full = "Error while serializing: I/O error: No space left on device (os error 28)"
    with (
        pytest.raises(DiskFullError, match=r"no room to write .*head: .*No space left.*bytes free"),
        disk_errors_named(tmp_path / "head"),
    ):
        raise RuntimeError(full)
    with pytest.raises(RuntimeError, match="os error 5"), disk_errors_named(tmp_path / "head"):
        raise RuntimeError("I/O error: Input/output error (os error 5)")


def test_a_full_disk_is_named_when_a_library_does_not_know_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save() -> None:
        with disk_errors_named(tmp_path / "vectors"):
            raise OSError("4096 requested and 0 written\nand a second line")

    with pytest.raises(OSError, match="requested and 0 written"):
        save()
    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", no_room)
        with pytest.raises(DiskFullError, match=r"vectors: 4096 requested and 0 written \("):
            save()
        # An error that says itself what it is stays what it is.
        with pytest.raises(NotFoundError), disk_errors_named(tmp_path / "vectors"):
            raise NotFoundError("there is no such thing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [ValueError, KeyError, RecursionError, AssertionError, MemoryError]
)
def test_an_error_that_no_full_disk_makes_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, "fsync", no_room)
    with pytest.raises(error), disk_errors_named(tmp_path / "head"):
        raise error("a mistake in the work itself")


def test_a_draft_lies_beside_its_file_under_a_fresh_name(tmp_path: Path) -> None:
    first, second = draft_path(tmp_path / "x"), draft_path(tmp_path / "x")
    assert first.parent == tmp_path
    assert first.name.startswith(DRAFT_PREFIX)
    assert first != second


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"{'a': 1}"])
def test_what_is_not_json_is_corrupt_data(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("what", ["folder", "file above"])
def test_what_is_in_the_way_of_a_file_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a" / "b.json"
    if what == "folder":
        path.mkdir(parents=True)
    else:
        path.parent.write_text("")
    with pytest.raises(CorruptDataError, match=r"cannot write .*b\.json: something else is in"):
        write_json(path, {})
    assert [p.name for p in tmp_path.rglob("*")] == (["a", "b.json"] if what == "folder" else ["a"])


def test_an_error_about_another_file_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "read").mkdir()
    with pytest.raises(IsADirectoryError), disk_errors_named(tmp_path / "written"):
        (tmp_path / "read").read_bytes()


@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_is_no_file_is_not_read_and_can_be_replaced(tmp_path: Path, what: str) -> None:
    path = tmp_path / "state.json"
    if what == "folder":
        (path / "inside").mkdir(parents=True)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(CorruptDataError, match=r"state\.json cannot be read .*should be a file"):
        read_json(path)
    assert not holds(path, b"new")
    rewrite(path, b"new")
    assert holds(path, b"new")
    assert not path.is_symlink()
    remove(path)
    assert not is_there(path)
    remove(path)


def test_json_nested_without_end_is_damage(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(CorruptDataError, match="not valid JSON"):
        read_json(tmp_path / "x.json")


def test_a_folder_that_cannot_be_flushed_is_named_and_what_was_removed_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").touch()
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(DiskFullError, match=r"no room to write .*file"):
        remove(tmp_path / "file")
    with pytest.raises(DiskFullError, match=r"no room to write .*folder"):
        remove_tree(tmp_path / "folder", first="inside")
    assert list(tmp_path.iterdir()) == [], "nothing is left under another name"


@pytest.mark.parametrize("code", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_a_new_file_never_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    def link(*_: object, **__: object) -> None:
        assert code is not None
        raise OSError(code, os.strerror(code))

    if code is not None:
        monkeypatch.setattr(os, "link", link)
    path = tmp_path / "new" / "file"
    assert create_durably(path, b"first")
    assert not create_durably(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_nlink == 1
    assert list(path.parent.iterdir()) == [path]


def test_of_many_processes_one_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        contents = [str(i).encode() for i in range(32)]
        won = list(pool.map(lambda content: create_durably(path, content), contents))
    assert won.count(True) == 1
    assert path.read_bytes() == contents[won.index(True)]


def test_a_link_whose_answer_was_lost_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_twice(*args: Any, **others: Any) -> None:
        link(*args, **others)
        link(*args, **others)

    monkeypatch.setattr(os, "link", link_twice)
    assert create_durably(tmp_path / "file", b"content")
