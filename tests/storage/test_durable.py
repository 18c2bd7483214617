import errno
import os
import stat
from pathlib import Path

import pytest

from storage.durable import (
    DRAFT_PREFIX,
    disk_errors_named,
    draft_path,
    read_json,
    write_durably,
    write_json,
)
from storage.errors import CorruptDataError, DiskFullError


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
