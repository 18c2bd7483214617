"""What files take: the blocks that are allocated on the disk, or the bytes of objects."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from permafrost.storage.replica import replica_of

_BLOCK = 512


@dataclass(frozen=True)
class FileUse:
    """One file."""

    path: str
    """Below the folder that was asked for, with slashes."""
    bytes: int
    changed: float
    """When its content was written, in seconds since the epoch."""


def files_of_home(home: Path) -> Iterator[FileUse]:
    """As `files_under`, and the files behind `features`, `artifacts` and feature stores that are links to
    folders outside, as of a home that has a part on another disk. Each is counted once."""
    yield from files_under(home)
    if replica_of(home) is not None:
        return
    seen = [home.resolve()]
    for place in (home / "artifacts", home / "features", *sorted(home.glob("features/*"))):
        if not (place.is_symlink() and place.is_dir()):
            continue
        target = place.resolve()
        if any(target.is_relative_to(folder) for folder in seen):
            continue
        seen.append(target)
        for file in files_under(place):
            yield replace(file, path=f"{place.relative_to(home).as_posix()}/{file.path}")


def files_under(folder: Path) -> Iterator[FileUse]:
    """Every file under a folder, links as themselves; in a home that mirrors an object store the objects,
    also those that were not fetched. What goes meanwhile is left out."""
    if (replica := replica_of(folder)) is not None:
        prefix = "" if folder.absolute() == replica.folder else f"{replica.key_of(folder)}/"
        for key, n_bytes, changed in replica.objects(folder):
            if key.startswith(prefix):
                yield FileUse(key.removeprefix(prefix), n_bytes, changed)
        return
    for path in _files(folder):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            name = path.relative_to(folder).as_posix()
            yield FileUse(name, found.st_blocks * _BLOCK, found.st_mtime)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        # A link to a folder is listed as a folder, and not followed.
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (Path(parent) / name for name in (*names, *links))
