"""What the many tables and receipts of a large store were last seen to say, kept in the user's cache folder.

A store of 10^5 segments has as many tables, and reading them takes minutes. What was read of a file counts as
long as its mark is the same: inode, bytes, and the times of its content and of its entry, of which nobody can
set the last one. What was changed within `SETTLED_S` before it was read counts only once, as a later change
may leave the same times. A store that was copied is read again, as its files are others.
"""

import contextlib
import hashlib
import json
import os
import struct
import time
import uuid
import zipfile
import zlib
from array import array
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.errors import InputError
from permafrost.storage.features.places import Places
from permafrost.storage.features.receipts import (
    INODE_BITS,
    ListedReceipts,
    listed_receipts,
    marks_of_folder,
)
from permafrost.storage.paths import cache_folder

WORTH = 256
"""Fewer files are read again."""
SETTLED_S = 2.0
VERSION = 1
_FILE, _FOLDER = 4, 3
"""Numbers in the mark of a file, and of a folder."""
_OF_TABLES = frozenset({"numbers", "marks", "sha256"}) | Places.packed_names()
_OF_RECEIPTS = frozenset({"segments", "folders", "arrays", "marks", "words"})
"""Names of what is kept."""
_BROKEN = (
    ValueError, KeyError, NotImplementedError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""What a damaged zip may raise: a flipped bit also says that it is packed, encrypted or of a new version."""


@dataclass(frozen=True)
class SeenTables:
    """The tables of the first segments of a store."""

    places: Places
    sha256: Mapping[int, str]
    """By segment."""


@dataclass(frozen=True)
class TableMarks:
    """The marks of some segments' tables, in the order of their numbers."""

    numbers: NDArray[np.int64]
    marks: NDArray[np.int64]
    """`[n, 4]`."""


def marks_of_tables(root: Path, numbers: Iterable[int]) -> TableMarks:
    """The marks of these segments' tables that are there; take them before reading the tables."""
    found, marks = array("q"), array("q")
    with _opened(root / "segments") as inside:
        for number in sorted(numbers):
            with contextlib.suppress(OSError):
                s = os.stat(f"{number:06d}.parquet", dir_fd=inside)
                marks.extend((s.st_ino & INODE_BITS, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
                found.append(number)
    return TableMarks(np.array(found, np.int64), np.array(marks, np.int64).reshape(-1, _FILE))


def seen_tables(root: Path, marks: TableMarks) -> SeenTables | None:
    """What was kept of the tables, up to the first whose mark is another one now."""
    kept = _load(root, "tables", _OF_TABLES)
    if kept is None:
        return None
    numbers: list[int] = kept["numbers"].tolist()
    n = min(len(marks.numbers), len(numbers))
    if not n:
        return None
    same = kept["numbers"][:n] == marks.numbers[:n]
    same &= (kept["marks"][:n] == marks.marks[:n]).all(1)
    n_same = n if same.all() else int(np.argmin(same))
    if not n_same:
        return None
    places = Places.unpacked(tuple(numbers), kept)
    if n_same < len(numbers):
        places = places.first(n_same)
    digits = kept["sha256"].tobytes().hex()
    sha256 = {number: digits[64 * i : 64 * i + 64] for i, number in enumerate(numbers[:n_same])}
    return SeenTables(places, sha256)


def keep_tables(root: Path, marks: TableMarks, places: Places, sha256: Mapping[int, str]) -> None:
    """Keep what tables say, up to the first that has not settled or of which something is unknown.

    Args:
        root: of the store.
        marks: taken before the tables were read.
        places: from the tables.
        sha256: of each table.
    """
    segments = np.array(places.segments, np.int64)
    n = min(len(segments), len(marks.numbers))
    good = (segments[:n] == marks.numbers[:n]) & (marks.marks[:n, -1] <= _settled())
    good &= np.array([number in sha256 for number in places.segments[:n]], bool)
    n = n if good.all() else int(np.argmin(good))
    if n < WORTH:
        return
    digits = "".join(sha256[number] for number in places.segments[:n])
    arrays = {
        "numbers": segments[:n],
        "marks": marks.marks[:n],
        "sha256": np.frombuffer(bytes.fromhex(digits), np.uint8),
    }
    whole = places if n == len(places.segments) else places.first(n)
    _save(root, "tables", arrays | whole.packed())


class SeenReceipts:
    """Which cells of a store are complete, as last listed.

    A receipt that comes or goes changes its folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[int, ListedReceipts] = {}
        self._words: dict[Hashable, Any] = {}
        """Folders and arrays, most of which are the same in every segment."""
        self._asked = False

    def of(self, segments: Sequence[int]) -> dict[int, frozenset[str]]:
        """The arrays that have a receipt in each of these segments, now."""
        if len(segments) >= WORTH and not self._asked:
            self._asked = True
            self._listed = self._kept() | self._listed
        settled, found, n_new = _settled(), dict[int, frozenset[str]](), 0
        with _opened(self._root / "receipts") as inside:
            for segment in segments:
                known = self._listed.get(segment)
                if known is None or _marks(f"{segment:06d}/", known.folders, inside) != known.marks:
                    known = self._shared(listed_receipts(self._root, segment))
                    self._listed.pop(segment, None)
                    if known.marks and max(known.marks[2::_FOLDER]) <= settled:
                        self._listed[segment] = known
                        n_new += 1
                found[segment] = known.arrays
        if n_new >= WORTH:
            self._keep()
        return found

    def _shared(self, known: ListedReceipts) -> ListedReceipts:
        folders = self._words.setdefault(known.folders, known.folders)
        return known._replace(
            folders=folders, arrays=self._words.setdefault(known.arrays, known.arrays)
        )

    def _kept(self) -> dict[int, ListedReceipts]:
        kept = _load(self._root, "receipts", _OF_RECEIPTS)
        if kept is None:
            return {}
        words: dict[str, list[list[str]]] = json.loads(kept["words"].tobytes())
        folders = [tuple(w) for w in words["folders"]]
        arrays = [frozenset(w) for w in words["arrays"]]
        marks, at = array("q", kept["marks"].tobytes()), 0
        found: dict[int, ListedReceipts] = {}
        segments, of_folders, of_arrays = (
            cast("list[int]", kept[n].tolist()) for n in ("segments", "folders", "arrays")
        )
        for segment, f, a in zip(segments, of_folders, of_arrays, strict=True):
            stop = at + _FOLDER * len(folders[f])
            found[segment] = ListedReceipts(folders[f], marks[at:stop], arrays[a])
            at = stop
        return found

    def _keep(self) -> None:
        folders, arrays, marks = _Numbered(), _Numbered(), array("q")
        listed = list(self._listed.items())
        columns: dict[str, list[int]] = {"segments": [], "folders": [], "arrays": []}
        for segment, one in listed:
            columns["segments"].append(segment)
            columns["folders"].append(folders.of(one.folders))
            columns["arrays"].append(arrays.of(tuple(sorted(one.arrays))))
            marks.extend(one.marks)
        words = json.dumps({"folders": folders.words, "arrays": arrays.words}).encode()
        packed = {name: np.array(column, np.int64) for name, column in columns.items()}
        packed["marks"] = np.array(marks, np.int64)
        _save(self._root, "receipts", packed | {"words": np.frombuffer(words, np.uint8)})


class _Numbered:
    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def of(self, word: tuple[str, ...]) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    @property
    def words(self) -> list[tuple[str, ...]]:
        return list(self._numbers)


def _marks(folder: str, folders: Iterable[str], inside: int | None) -> "array[int]":
    """Of the folders below a segment's receipts; none if one of them is gone."""
    found = array("q")
    try:
        for name in folders:
            found.extend(marks_of_folder(folder + name, inside))
    except OSError:
        return array("q")
    return found


@contextlib.contextmanager
def _opened(folder: Path) -> Generator[int | None]:
    """The descriptor of a folder; None if it is not there."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _settled() -> int:
    """Times of entries, in nanoseconds, up to which nothing else can have happened in the same tick."""
    return time.time_ns() - int(SETTLED_S * 1e9)


def _path(root: Path, what: str) -> Path:
    name = hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:32]
    return cache_folder() / "stores" / f"{name}-{what}.npz"


def _load(root: Path, what: str, names: frozenset[str]) -> dict[str, NDArray[Any]] | None:
    """Kept arrays of these names; None if there are none, of another version, or damaged."""
    try:
        # numpy leaves a file open that it opened itself and could not read.
        with _path(root, what).open("rb") as file, np.load(file, allow_pickle=False) as kept:
            # Zip's own checksums are compared; they are not of the names.
            found = {name: kept[name] for name in names | {"version"}}
    except (OSError, EOFError, InputError, *_BROKEN):
        return None
    return found if found["version"].tolist() == [VERSION] else None


def _save(root: Path, what: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    # A cache that cannot be written costs time and nothing else.
    with contextlib.suppress(OSError, InputError):
        path = _path(root, what)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}.npz")
        try:
            np.savez(draft, allow_pickle=False, version=np.array([VERSION]), **arrays)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
