"""What was removed while it was being read, as an error that says so."""

import contextlib
import re
from collections.abc import Generator
from pathlib import Path

from permafrost.storage.errors import RemovedError
from permafrost.storage.replica import public_name

ROOMS = ("artifacts", "features", "runs")
"""Folders of a home from which files are removed."""


@contextlib.contextmanager
def removal_named(home: Path | None = None) -> Generator[None]:
    """Turn 'no such file' into an error that says that the file was removed while it was being read.

    Args:
        home: whose files; if it is not known, those of a folder that looks like part of a home.

    Raises:
        RemovedError: a file of the home is gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        path = _path_of(error)
        if path is None or not _is_inside(path, home):
            raise
        raise RemovedError(
            f"{public_name(path)} is gone: it was removed while it was being read (by gc, drop or "
            "repair, or by "
            "hand). Run the same command again; 'permafrost ls' lists what is there, and the next run of an "
            "experiment makes again what it lacks"
        ) from error


_QUOTED = re.compile(r"'(/[^']*)'|(/.*)$")


def _path_of(error: FileNotFoundError) -> Path | None:
    if isinstance(error.filename, str):
        return Path(error.filename)
    # Arrow and safetensors give the path in the message only.
    found = _QUOTED.search(str(error))
    return None if found is None else Path(found[1] or found[2])


def _is_inside(path: Path, home: Path | None) -> bool:
    absolute = path.absolute()
    if home is not None:
        return absolute.is_relative_to(home.absolute())
    above = [p.parent for p in absolute.parents if p.name in ROOMS]
    return any((p / room).is_dir() for p in above for room in ROOMS)
