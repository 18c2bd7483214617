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

from storage.drafts import DRAFT_PREFIX, owner
from storage.errors import CorruptDataError, DiskFullError, PermafrostError
from storage.replica import replica_of

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PROBE_BYTES = 1 << 20


@contextlib.contextmanager
def disk_errors_named(path: Path) -> Generator[None]:
    """Turn 'no space', 'quota' and 'file too large' into one error that says where and what to do.

    Libraries have errors of their own for it, some without the system's number.
    """
    try:
        yield
    except Exception as error:
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
    return _refuses_more(near if near.is_dir() else near.parent)


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
    """Remove a file durably; one that is not there is as good."""
    if (replica := replica_of(path)) is not None:
        replica.delete(path)
    if path.exists():
        path.unlink()
        sync_folder(path.parent)


def remove_tree(folder: Path, first: str) -> None:
    """Remove a folder; `first` is the file in it without which the rest means nothing."""
    if (replica := replica_of(folder)) is not None:
        replica.delete_tree(folder, first)
    (folder / first).unlink(missing_ok=True)
    shutil.rmtree(folder)


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


def read_json(path: Path) -> Any:
    """Parse a JSON file that we wrote.

    Raises:
        CorruptDataError: not JSON.
        FileNotFoundError: not there.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptDataError(
            f"{path} is not valid JSON ({error}); run 'permafrost verify' to see what else is damaged"
        ) from error
