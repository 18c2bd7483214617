"""Durable small writes: a file exists completely or not at all, even after a power failure.

In a home that mirrors an object store every change is made there first.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from permafrost.storage.disk_errors import disk_errors_named, require_damage
from permafrost.storage.disk_use import files_under
from permafrost.storage.drafts import draft_path
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.replica import public_name, replica_of

_HAS_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
T = TypeVar("T")


def let_others_read(folder: Path) -> None:
    """Let whoever may read a folder read its files: safetensors writes them for the owner alone, and a home
    or an export may be for a group."""
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode | (path.parent.stat().st_mode & 0o444)
        if mode != wanted and path.is_file():
            # Some file systems have no modes.
            with contextlib.suppress(PermissionError):
                path.chmod(wanted)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, durably: after a power failure a file that was
    flushed into a new folder is gone if that one's own name was not flushed."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    # The folder above the home may be one that this user cannot open.
    with contextlib.suppress(PermissionError):
        sync_folder(folder.parent)


def publish(draft: Path, path: Path) -> None:
    """Rename a finished, flushed draft to its final name."""
    replica = replica_of(path)
    tag = None if replica is None else replica.put(draft, path)
    draft.replace(path)
    sync_folder(path.parent)
    if replica is not None and tag is not None:
        replica.note(path, tag)


def remove(path: Path) -> None:
    """Remove a file, or whatever damage put in its place, durably; does nothing if it does not exist.

    Raises:
        DiskFullError: it is gone, but its folder could not be flushed.
    """
    with disk_errors_named(path):
        if remove_any(path):
            sync_folder(path.parent)
    # After it has gone here: if killed in between, it comes back with the next look at the object store.
    if (replica := replica_of(path)) is not None:
        replica.delete(path)


def is_there(path: Path) -> bool:
    """Whether anything has this name, even a dangling link."""
    return os.path.lexists(path)


def remove_any(path: Path) -> bool:
    """Remove a file, link or folder of this name; returns whether there was one."""
    if not is_there(path):
        return False
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return True


def remove_tree(folder: Path, first: str) -> None:
    """Remove a folder by one rename, then delete it: if killed in between, a draft is left. On an object
    store `first`, the file without which the others are meaningless, is deleted before them, and what mirrors
    them here before all: what is here has to be there."""
    set_aside(folder)
    if (replica := replica_of(folder)) is not None:
        replica.delete_tree(folder, first)


def set_aside(folder: Path) -> None:
    """Remove a folder, or whatever is in its place, by one rename, then delete it.

    Raises:
        DiskFullError: it is gone, but the folder above could not be flushed; or nothing was changed.
    """
    doomed = renamed_aside(folder)
    with disk_errors_named(folder):
        remove_any(doomed)


def renamed_aside(folder: Path) -> Path:
    """Remove a folder, or whatever is in its place, by one rename, and leave deleting it to the caller;
    returns its new name, which is a draft's.

    Raises:
        DiskFullError: as `set_aside`.
    """
    doomed = draft_path(folder)
    with disk_errors_named(folder):
        folder.rename(doomed)
        try:
            sync_folder(folder.parent)
        except BaseException:
            remove_any(doomed)
            raise
    return doomed


def bytes_under(folder: Path) -> int:
    """Bytes of the files under a folder: allocated on disk, or in the object store."""
    return sum(file.bytes for file in files_under(folder))


def write_durably(path: Path, content: bytes) -> None:
    """Write `content` to a draft, fsync, rename over `path`, fsync the folder.

    Raises:
        DiskFullError: there is no room; `path` is unchanged.
    """
    _write_draft(path, lambda file: file.write(content), publish)


def stream_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """As `write_durably` of what `write` puts into a new file, for content that is large to hold at once.

    Raises:
        DiskFullError: there is no room; `path` is unchanged.
    """
    _write_draft(path, write, publish)


def _write_draft(
    path: Path, write: Callable[[BinaryIO], object], publishing: Callable[[Path, Path], T]
) -> T:
    with disk_errors_named(path):
        make_folder(path.parent)
        draft = draft_path(path)
        try:
            with draft.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            return publishing(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def _publish_new(draft: Path, path: Path) -> bool:
    """Give a finished, flushed draft its final name unless something has it; returns whether it got it."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        # A network file system may have lost the answer to a link that it made.
        if not path.is_file() or not path.samefile(draft):
            return False
    except OSError as error:
        if error.errno not in _HAS_NO_LINKS:
            raise
        # There a second process can still come between.
        if is_there(path):
            return False
        draft.replace(path)
    sync_folder(path.parent)
    return True


def rewrite(path: Path, content: bytes) -> None:
    """As `write_durably`, but first removes a folder that damage may have put in the file's place.

    Raises:
        DiskFullError: there is no room.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_durably(path, content)


def holds(path: Path, content: bytes) -> bool:
    """Whether the file exists with exactly this content."""
    try:
        return read_whole(path) == content
    except (CorruptDataError, FileNotFoundError):
        return False


def holds_sha256(path: Path, sha256: str) -> bool:
    """Whether the file exists with content of this digest."""
    return sha256_of(path) == sha256


def sha256_of(path: Path) -> str | None:
    """The digest of a file's content; None if there is no file."""
    try:
        return hashlib.sha256(read_whole(path)).hexdigest()
    except (CorruptDataError, FileNotFoundError):
        return None


def large_sha256(path: Path) -> str:
    """The digest of the content of a file that may be too large for memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_bytes(value: object) -> bytes:
    """Readable JSON, deterministic for each value."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def create_durably(path: Path, content: bytes) -> bool:
    """As `write_durably` for a new file; returns False if another process or machine has created it
    meanwhile, whose content is then in place.

    Raises:
        DiskFullError: there is no room; nothing was created.
    """
    replica = replica_of(path)
    if replica is None:
        return _write_draft(path, lambda file: file.write(content), _publish_new)
    make_folder(path.parent)
    draft = draft_path(path)
    try:
        draft.write_bytes(content)
        created = replica.put_new(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    # Fetched even if it is ours, so that everything in the replica comes from the object store.
    replica.fetch(path)
    return created


def write_json(path: Path, value: object) -> None:
    """`write_durably` of readable JSON."""
    write_durably(path, json_bytes(value))


def read_whole(path: Path) -> bytes:
    """The content of a file that we wrote.

    Raises:
        CorruptDataError: a folder or dangling link is in its place.
        UnreadableError: it cannot be read for another reason.
        FileNotFoundError: it does not exist.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            raise
        require_damage(path, error)
        what = "a link to nothing" if path.is_symlink() else error.strerror
        raise CorruptDataError(f"{path} cannot be read ({what}); it should be a file") from error


VERIFY = "run 'permafrost verify' to see what else is damaged"


def read_json(path: Path, advice: str = VERIFY) -> Any:
    """Parse a JSON file that we wrote; `advice` is what to do if it is damaged, of a file in no home.

    Raises:
        CorruptDataError: it is not JSON, or cannot be read.
        FileNotFoundError: it does not exist.
    """
    content = read_whole(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"{public_name(path)} is not valid JSON ({error}); {advice}"
        ) from error
