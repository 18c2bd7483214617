"""What reads and writes meet on a disk: no room, something in the place of a file, or a failure; errors that
say where and what to do."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path

from permafrost.storage.drafts import DRAFT_PREFIX, draft_path
from permafrost.storage.entity_tags import mirrored_at
from permafrost.storage.errors import (
    CorruptDataError,
    DiskFullError,
    PermafrostError,
    UnreadableError,
)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PROBE_BYTES = 1 << 20
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP}
_NO_FILE = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.ENXIO}
"""Of a read: something else is in the place of the file, or nothing."""
_TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}
_DENIED = {errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def disk_errors_named(path: Path, url: str | None = None) -> Generator[None]:
    """Turn 'no space', 'quota' and 'file too large' into one error that says where and what to do, and
    'is a directory' and the like into one that says what is damaged.

    Libraries raise their own errors for a full disk, some of them without an errno.

    Args:
        path: what is written.
        url: of the home that it belongs to, if that is on an object store; found out if not given.

    Raises:
        DiskFullError: there is no room.
        CorruptDataError: a folder, a link or a file is in the place of something else.
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
        reason = (text or str(error)).partition("\n")[0]
        free = shutil.disk_usage(existing).free
        where = "choose another --home"
        if (home := url or mirrored_at(path)) is not None:
            where = f"put this machine's copy of {home} elsewhere by the variable PERMAFROST_CACHE"
        raise DiskFullError(
            f"no room to write {path}: {reason} ({free:,} bytes free there); nothing was half-written. Free "
            f"some space or {where}, then run the same command again"
        ) from error


def require_damage(path: Path, error: OSError) -> None:
    """Check that a failed read of `path` shows damage: something else, or nothing, is in its place. Any other
    failure (of the disk, the network, memory, permissions, a limit) may pass, and the file may be whole.

    Raises:
        UnreadableError: it is such a failure.
    """
    if error.errno in _NO_FILE:
        return
    if error.errno in _TOO_MANY_OPEN:
        advice = "Close other programs or raise the limit of open files ('ulimit -n')"
    elif error.errno in _DENIED:
        advice = "Let this user read it"
    else:
        advice = "If it stays so, put the file back from a backup, or delete it and run 'permafrost repair'"
    raise UnreadableError(
        f"{path} could not be read ({error.strerror or error}), which says nothing about what is in it; it "
        f"was not removed. Run the same command again. {advice}"
    ) from error


def _tells_no_room(error: Exception, near: Path) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_ROOM
    # Libraries in Rust, such as safetensors, give the errno in the message only.
    if (number := re.search(r"\(os error (\d+)\)", str(error))) is not None:
        return int(number[1]) in _NO_ROOM
    # NumPy raises an OSError without errno, PyTorch a plain RuntimeError; anything else, subclasses included,
    # is not a failed write, and does not justify a probe.
    may_be_a_write = isinstance(error, OSError) or type(error) is RuntimeError
    return may_be_a_write and _refuses_more(near if near.is_dir() else near.parent)


def _refuses_more(folder: Path) -> bool:
    """Whether a small probe does not fit, as NumPy's and PyTorch's errors do not mention a full disk."""
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
    """Whether an error concerns `path`, a draft beside it or a folder above it, not a file that was read
    while writing it."""
    # A rename has two names; the obstacle is at the second.
    name: object = error.filename if error.filename2 is None else error.filename2
    if error.errno not in _IN_THE_WAY or not isinstance(name, str | Path):
        return False
    obstacle, path = Path(name).absolute(), path.absolute()
    is_draft = obstacle.parent == path.parent and obstacle.name.startswith(DRAFT_PREFIX)
    return is_draft or obstacle in (path, *path.parents)
