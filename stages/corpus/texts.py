"""A plain list of texts, read from a single command-line argument."""

import re
from pathlib import Path

from permafrost.stages.corpus.sources.hub import read_split, resolve_commit
from permafrost.stages.corpus.table_files import read_columns
from permafrost.stages.corpus.values import checked_texts
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts

_HUB = "hf:"
_DEFAULT_COLUMN = "text"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,2}")
"""An id on the hub, with or without a config."""


def read_texts(spec: str) -> Texts:
    """Texts in the order of the rows, repetitions included.

    Args:
        spec: a parquet, csv, jsonl or txt file, with `::COLUMN` for another column than `text`; or
            `hf:DATASET[/CONFIG]:SPLIT[:COLUMN]`, where DATASET is a hub id or a folder. As ids contain a
            slash too, the dataset is the longest prefix that is a folder or an id on the hub.

    Raises:
        InputError: the texts cannot be read, or one is missing or blank.
    """
    if spec.startswith(_HUB):
        return _hub_texts(spec)
    path, separator, column = spec.rpartition("::")
    if not separator:
        path, column = spec, _DEFAULT_COLUMN
    if not path or not column:
        raise InputError(f"{quoted(spec)} is not of the form FILE or FILE::COLUMN")
    table = read_columns(Path(path), [column], [])
    return Texts(checked_texts(table.column(column), column, path))


def table_of(spec: str) -> Path | None:
    """The table that `read_texts` reads a column of; None for lines of a file and for the hub."""
    if spec.startswith(_HUB):
        return None
    path = Path(spec.rpartition("::")[0] or spec)
    return None if path.suffix == ".txt" else path


def _hub_texts(spec: str) -> Texts:
    parts = spec.removeprefix(_HUB).split(":")
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise InputError(f"{quoted(spec)} is not of the form hf:DATASET/CONFIG:SPLIT:COLUMN")
    dataset, split = parts[:2]
    column = parts[2] if len(parts) == 3 else _DEFAULT_COLUMN
    path, config, revision = _dataset(dataset)
    table, _ = read_split(path, config, revision, split, [column])
    return Texts(checked_texts(table.column(column), column, f"split {quoted(split)} of {path}"))


def _is_dots(path: str) -> bool:
    return Path(path).name in ("", "..")


def _dataset(name: str) -> tuple[str, str, str]:
    """Path, config and revision of `DATASET[/CONFIG]`."""
    candidates = [(name, "default")]
    parent, slash, config = name.rpartition("/")
    if slash and parent:
        candidates.append((parent, config))
    checked_path(name, "the dataset")
    if Path(name).is_dir():
        return name, "default", "main"
    # A folder has several configs only if its dataset card lists them; otherwise the search is in vain.
    if len(candidates) > 1 and (Path(parent) / "README.md").is_file() and not _is_dots(parent):
        return parent, config, "main"
    if not _ID.fullmatch(name):
        raise InputError(
            f"the dataset {quoted(name)} is neither a folder here, nor a folder with a config of it, nor "
            "an id of the hub such as org/name"
        )
    first: InputError | None = None
    for path, config in candidates:
        if path.count("/") > 1:
            continue
        try:
            return path, config, resolve_commit(path, "main")
        except InputError as error:
            first = first or error
    raise first or InputError(f"{quoted(name)} is neither a folder here nor an id of the hub")
