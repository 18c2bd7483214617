"""Durable small writes: a file is there whole or not at all, also after a power cut.

Under a home that mirrors an object store every change is made there first.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

from permafrost.storage.drafts import DRAFT_PREFIX, owner
from permafrost.storage.errors import CorruptDataError, DiskFullError, PermafrostError
from permafrost.storage.replica import replica_of

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PROBE_BYTES = 1 << 20
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP}


@contextlib.contextmanager
def disk_errors_named(path: Path) -> Generator[None]:
    """Turn 'no space', 'quota' and 'file too large' into one error that says where and what to do, and
    'is a directory' and the like into one that says what is damaged.

    Libraries have errors of their own for a full disk, some without the system's number.

    Raises:
        DiskFullError: no room.
        CorruptDataError: a folder, a link or a file is where another one belongs.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and _is_in_the_way(error, path):
            raise CorruptDataError(
                f"cannot write {path}: something else is in its place or above it ({error.strerror}: "
                f"{error.filename}); nothing was half-written. Run 'permafrost verify', or remove that"
            ) from error
        existing = next(p for p in (path, *path.parents) if p.exists())
        if isinstance(error, PermafrostError) or not _tells_no_room(error, existing):
            raise
        text = error.strerror if isinstance(error, OSError) else None
        said = (text or str(error)).partition("\n")[0]
        free = shutil.disk_usage(existing).free
        raise DiskFullError(
            f"no room to write {path}: {said} ({free:,} bytes free there); nothing was half-written. Free "
            f"some space or choose another --home, then run the same command again"
        ) from error


def _tells_no_room(error: Exception, near: Path) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_ROOM
    # Libraries in Rust, safetensors among them, give the number in words only.
    if (number := re.search(r"\(os error (\d+)\)", str(error))) is not None:
        return int(number[1]) in _NO_ROOM
    # NumPy raises an OSError without a number, PyTorch a plain RuntimeError; what is anything else, also one
    # of their descendants, is no failed write, and not worth a write of ours.
    may_be_a_write = isinstance(error, OSError) or type(error) is RuntimeError
    return may_be_a_write and _refuses_more(near if near.is_dir() else near.parent)


def _refuses_more(folder: Path) -> bool:
    """Whether a little more does not fit; what NumPy and PyTorch raise on a full disk says nothing of it."""
    probe = draft_path(folder / "probe")
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in _NO_ROOM
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return False


def _is_in_the_way(error: OSError, path: Path) -> bool:
    """Whether an error is of `path`, a draft beside it or a folder above it, and not of a file that was read
    while it was made."""
    # A rename has two names, and what is in the way is at the second.
    name: object = error.filename if error.filename2 is None else error.filename2
    if error.errno not in _IN_THE_WAY or not isinstance(name, str | os.PathLike):
        return False
    found, path = Path(name).absolute(), path.absolute()
    is_draft = found.parent == path.parent and found.name.startswith(DRAFT_PREFIX)
    return is_draft or found in (path, *path.parents)


def draft_path(path: Path) -> Path:
    """A fresh private name beside `path`, on the same file system."""
    return path.with_name(f"{DRAFT_PREFIX}{path.name}-{owner()}-{uuid.uuid4().hex[:8]}")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(draft: Path, path: Path) -> None:
    """Give a finished, flushed draft its name."""
    replica = replica_of(path)
    tag = None if replica is None else replica.put(draft, path)
    draft.replace(path)
    sync_folder(path.parent)
    if replica is not None and tag is not None:
        replica.note(path, tag)


def remove(path: Path) -> None:
    """Remove a file durably, or what damage put in its place; one that is not there is as good."""
    if (replica := replica_of(path)) is not None:
        replica.delete(path)
    if remove_any(path):
        sync_folder(path.parent)


def is_there(path: Path) -> bool:
    """Whether anything has this name, also a link to nothing."""
    return os.path.lexists(path)


def remove_any(path: Path) -> bool:
    """Remove what has this name, be it a file, a link or a folder; says whether there was something."""
    if not is_there(path):
        return False
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return True


def remove_tree(folder: Path, first: str) -> None:
    """Remove a folder by one rename, then delete: a kill in between leaves a draft. On an object store
    `first`, the file in it without which the rest means nothing, is deleted before the rest."""
    if (replica := replica_of(folder)) is not None:
        replica.delete_tree(folder, first)
    set_aside(folder)


def set_aside(folder: Path) -> None:
    """Remove a folder, or what is in its place, by one rename, then delete."""
    doomed = draft_path(folder)
    folder.rename(doomed)
    sync_folder(folder.parent)
    remove_any(doomed)


def bytes_under(folder: Path) -> int:
    """Bytes that the files under a folder take: allocated on the disk, or held by the object store."""
    if (replica := replica_of(folder)) is not None:
        return replica.size(folder)
    return sum(p.lstat().st_blocks * 512 for p in folder.rglob("*") if not p.is_dir())


def write_durably(path: Path, content: bytes) -> None:
    """Write `content` to a draft, fsync, rename over `path`, fsync the folder.

    Raises:
        DiskFullError: no room; `path` is as it was.
    """
    with disk_errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_path(path)
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def rewrite(path: Path, content: bytes) -> None:
    """As `write_durably` where damage may have put a folder in the file's place: it is removed.

    Raises:
        DiskFullError: no room.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_durably(path, content)


def holds(path: Path, content: bytes) -> bool:
    """Whether a file is there with exactly this content."""
    try:
        return read_whole(path) == content
    except (CorruptDataError, FileNotFoundError):
        return False


def json_bytes(value: object) -> bytes:
    """Readable JSON, one form per value."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def create_durably(path: Path, content: bytes) -> bool:
    """As `write_durably` for a file that is not there; False if another machine made it meanwhile, whose
    content is then in place instead."""
    replica = replica_of(path)
    if replica is None:
        write_durably(path, content)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_path(path)
    try:
        draft.write_bytes(content)
        created = replica.put_new(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    # Fetched also when it is ours: what is in the replica came from the object store.
    replica.fetch(path)
    return created


def write_json(path: Path, value: object) -> None:
    """`write_durably` of readable JSON."""
    write_durably(path, json_bytes(value))


def read_whole(path: Path) -> bytes:
    """Content of a file that we wrote.

    Raises:
        CorruptDataError: it cannot be read: a folder or a link to nothing is in its place, or the disk fails.
        FileNotFoundError: not there.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            raise
        what = "a link to nothing" if path.is_symlink() else error.strerror
        raise CorruptDataError(f"{path} cannot be read ({what}); it should be a file") from error


def read_json(path: Path) -> Any:
    """Parse a JSON file that we wrote.

    Raises:
        CorruptDataError: not JSON, or not to be read.
        FileNotFoundError: not there.
    """
    content = read_whole(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"{path} is not valid JSON ({error}); run 'permafrost verify' to see what else is damaged"
        ) from error
