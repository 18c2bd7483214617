"""Checks that a file system can hold a path, before anything is read from it or written to it."""

import os
import tempfile
from pathlib import Path

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

NAME_BYTES = 255
"""Maximum length of one name in a path on the file systems of Linux and macOS."""
PATH_BYTES = 4095
"""Maximum length of a whole absolute path."""
HOME_BYTES = PATH_BYTES - 400
"""Maximum length of a path below which folders are created: names of stores, artifacts and shards follow."""

DEFAULT_HOME = ".permafrost"
"""In the working folder."""
HOME_VARIABLE = "PERMAFROST_HOME"
"""The environment variable that names another home than that."""


def default_home() -> str:
    """The home where none is named: that of PERMAFROST_HOME, or `.permafrost` in the working folder."""
    return os.environ.get(HOME_VARIABLE) or DEFAULT_HOME


def cache_folder() -> Path:
    """The folder of what can be made again, which need not exist: PERMAFROST_CACHE, or
    `permafrost` in the user's cache folder.

    Raises:
        InputError: the user has no folder at all, as in a container.
    """
    if own := os.environ.get("PERMAFROST_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "permafrost"
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder, so there is no place for a cache; set the environment variable "
            "PERMAFROST_CACHE to a folder"
        ) from error


def writable_cache_folder() -> Path:
    """As `cache_folder`, after checking that folders can be created in it.

    Raises:
        InputError: they cannot, or there is no place for a cache.
    """
    what = "the cache (PERMAFROST_CACHE)"
    folder = checked_path(cache_folder(), what, HOME_BYTES)
    require_writable(folder, what)
    return folder


def checked_path(path: str | os.PathLike[str], what: str, limit: int = PATH_BYTES) -> Path:
    """The path, after checking that such a file or folder is possible; it need not exist.

    Args:
        path: as the user wrote it.
        what: what the path is, for messages, e.g. "the home".
        limit: maximum bytes of the absolute path.

    Raises:
        InputError: it is empty, contains a NUL byte or half of a surrogate pair, is too long, lies below a
            file or in a loop of links, or a folder on the way cannot be entered.
    """
    text = os.fspath(path)
    if not text:
        raise InputError(f"{what} is empty; give a path")
    if "\0" in text:
        raise InputError(f"{what} {quoted(text)} holds a NUL byte, which no path may; take it out")
    try:
        lengths = [len(os.fsencode(part)) for part in Path(text).parts]
        whole = len(os.fsencode(Path(text).absolute()))
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} {quoted(text)} holds half of a character, which no path may; take it out"
        ) from error
    if max(lengths, default=0) > NAME_BYTES:
        raise InputError(
            f"{what} {quoted(text)} has a name of {max(lengths):,} bytes in it, and file systems take "
            f"{NAME_BYTES}; choose a shorter one"
        )
    if whole > limit:
        raise InputError(
            f"{what} {quoted(text)} has {whole:,} bytes, absolute, of at most {limit:,}; choose a shorter one"
        )
    _require_reachable(Path(text), what)
    return Path(text)


def require_writable(folder: Path, what: str) -> None:
    """Check that files can be created in a folder, or in its nearest existing parent; leaves none behind.

    Raises:
        InputError: they cannot; the message says why.
    """
    existing = next(
        p for p in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(p)
    )
    try:
        # By trying: permission bits do not show a read-only file system, or what /proc refuses its owner.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        is_dangling = existing.is_symlink() and not existing.exists()
        why = "it is a link to nothing" if is_dangling else error.strerror
        raise InputError(
            f"{what} cannot be written to {quoted(str(folder))}: {existing} may not be written to "
            f"({why}); choose another place"
        ) from error


def _require_reachable(path: Path, what: str) -> None:
    try:
        path.stat()
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        absolute = path.absolute()
        file = next((p for p in reversed(absolute.parents) if p.is_file()), absolute.parent)
        raise InputError(
            f"{what} {quoted(str(path))} lies below {file}, which is not a folder; choose another place"
        ) from error
    except OSError as error:
        raise InputError(
            f"{what} {quoted(str(path))} cannot be reached: {error.strerror}; choose another place"
        ) from error
