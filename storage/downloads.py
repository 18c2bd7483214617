"""Objects that become files, each whole: never bytes of two objects that had the same key."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import obstore
from obstore.exceptions import PreconditionError
from obstore.store import ObjectStore

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE_BYTES = 16 << 20
"""Bytes per request of a download; each request has its own time limit."""
TRIES = 3
"""How often an object is begun with that is replaced between two of its pieces."""


def download(
    store: ObjectStore, key: str, file: BinaryIO, moved: Callable[[int], None] = lambda _: None
) -> str:
    """Write an object to an open file; returns its entity tag.

    Args:
        store: where it is.
        key: its name there.
        file: written over.
        moved: told the bytes of every piece.

    Raises:
        FileNotFoundError: there is no such object.
        BaseError: it could not be read, or was replaced again and again meanwhile.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(PreconditionError):
            return _written(store, key, file, moved)
    return _written(store, key, file, moved)


def _written(store: ObjectStore, key: str, file: BinaryIO, moved: Callable[[int], None]) -> str:
    file.seek(0)
    file.truncate()
    # What a small object holds and its size and tag are of one answer.
    found = obstore.get(store, key)
    size, tag = found.meta["size"], found.meta["e_tag"]
    if size <= PIECE_BYTES:
        file.write(found.bytes())
        moved(size)
        return tag or ""
    for start in range(0, size, PIECE_BYTES):
        end = min(start + PIECE_BYTES, size)
        options: GetOptions = {"range": (start, end), "if_match": tag}
        file.write(obstore.get(store, key, options=options).bytes())
        moved(end - start)
    return tag or ""
