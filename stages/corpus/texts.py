"""A plain list of texts, or of pairs of texts, read from a single command-line argument."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.data_files import FORMATS, extension_of
from permafrost.stages.corpus.names import FIRST, TEXT, find_column, require_columns
from permafrost.stages.corpus.sources.hub import open_split, resolve_commit, select_columns
from permafrost.stages.corpus.table_files import (
    column_names,
    delimiter_advice,
    file_format,
    first_values,
    format_with,
    read_columns,
)
from permafrost.stages.corpus.text_format import UTF_8, TextFormat
from permafrost.stages.corpus.values import checked_texts, decoded, holds_text
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts

_HUB = "hf:"
_COLON = re.compile(r":(?![^\[\]]*\])")
"""One that is not that of a slice such as `train[:100]`."""
_NAMED = {"file": "Name one as FILE::COLUMN", "hub": "Name one as hf:DATASET:SPLIT:COLUMN"}
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,2}")
"""An id on the hub, with or without a config."""


@dataclass(frozen=True)
class TextsOfRows:
    """Texts, or pairs of texts, in the order of the rows, repetitions included."""

    texts: Texts
    pairs: Texts | None
    """The second text of each row; None for single texts."""
    ids: pa.ChunkedArray
    """Of each row: text or whole numbers; the number of the row, from 0, where no column was named."""


def read_texts(spec: str) -> Texts:
    """Texts in the order of the rows, repetitions included.

    Args:
        spec: a file of parquet, csv, tsv, jsonl, json or txt (packed with gzip too: `.csv.gz`), with
            `::COLUMN` for a column without a usual name (`names.TEXT`); or
            `hf:DATASET[/CONFIG]:SPLIT[:COLUMN]`, where DATASET is a hub id or a folder, and SPLIT may have a
            slice (`train[:100]`). As ids contain a slash too, the dataset is the longest prefix that is a
            folder or an id on the hub.

    Raises:
        InputError: the texts cannot be read, or one is missing or blank.
    """
    return read_rows(spec).texts


def read_rows(
    spec: str,
    pair: str | None = None,
    ids: str | None = None,
    *,
    delimiter: str | None = None,
    encoding: str = UTF_8,
) -> TextsOfRows:
    """Texts or pairs of texts, with an id each.

    Args:
        spec: see `read_texts`.
        pair: column of the second text; None for single texts.
        ids: column of the ids; None for the numbers of the rows.
        delimiter: between the fields of csv and tsv; None for a comma and a tab.
        encoding: of a file of text.

    Raises:
        InputError: the columns cannot be read, a text or an id is missing, or a text is blank.
    """
    others = [name for name in (pair, ids) if name is not None]
    if spec.startswith(_HUB):
        if delimiter is not None or encoding != UTF_8:
            raise InputError(
                f"{quoted(spec)} is a dataset, which has no delimiter and no encoding; leave them out"
            )
        table, column, where = _hub_table(spec, pair, others)
    else:
        path, separator, column = spec.rpartition("::")
        if not separator:
            path, column = spec, None
        if not path or column == "":
            raise InputError(f"{quoted(spec)} is not of the form FILE or FILE::COLUMN")
        how = format_with(Path(path), delimiter, encoding)
        column = _file_column(Path(path), column, pair, others, how)
        names = [column] if pair is None else [column, pair]
        table = read_columns(Path(path), names, [], ids=[] if ids is None else [ids], how=how)
        where = path
    texts = Texts(checked_texts(table.column(column), column, where))
    seconds = None if pair is None else Texts(checked_texts(table.column(pair), pair, where))
    return TextsOfRows(texts, seconds, _ids(table, ids, where))


def _ids(table: pa.Table, name: str | None, where: str) -> pa.ChunkedArray:
    if name is None:
        return pa.chunked_array([pa.array(np.arange(table.num_rows))])
    column = table.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if holds_text(kind):
        column = decoded(column, name, where)
    elif not pa.types.is_integer(kind):
        raise InputError(
            f"column {quoted(name)} of {where} holds {column.type}, but an id is text or a whole number; "
            "name another column, or none for the numbers of the rows"
        )
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py() + 1
        raise InputError(
            f"row {row} of {where} has nothing in column {quoted(name)} ({column.null_count} such of "
            f"{table.num_rows} rows); fill it, or name no column of ids"
        )
    if holds_text(column.type):
        blank = pc.index(pc.equal(pc.utf8_trim_whitespace(column), ""), True).as_py()
        if blank >= 0:
            written = quoted(column.slice(blank, 1).to_pylist()[0])
            raise InputError(
                f"row {blank + 1} of {where} has the blank id {written} in column {quoted(name)}; fill it, "
                "or name no column of ids"
            )
    return column


def table_of(spec: str) -> Path | None:
    """The table that `read_texts` reads a column of; None for lines of a file and for the hub."""
    if spec.startswith(_HUB):
        return None
    path = Path(spec.rpartition("::")[0] or spec)
    return None if FORMATS.get(extension_of(path)) == "txt" else path


def _file_column(
    path: Path, given: str | None, pair: str | None, others: Sequence[str], how: TextFormat
) -> str:
    wanted = ["text" if given is None else given, *others]
    # All fields of all rows take long to find.
    is_json = file_format(path) in ("jsonl", "json")
    if is_json and wanted[0] != pair and {*wanted} <= {*first_values(path, wanted, how)}:
        return wanted[0]
    advice = _NAMED["file"] + delimiter_advice(path, how)
    return _column(column_names(path, how), given, pair, others, str(path), advice)


def _column(
    available: Sequence[str],
    given: str | None,
    pair: str | None,
    others: Sequence[str],
    where: str,
    advice: str,
) -> str:
    """The column of the texts, with any of its usual names unless one is given."""
    if given is None:
        usual = TEXT if pair is None else FIRST
        given = find_column("text", usual[0], usual, available, where, advice)
    require_columns(available, [given], where, advice)
    require_columns(available, others, where, "Name one of these in its place")
    if given == pair:
        raise InputError(
            f"column {quoted(given)} of {where} would be both texts of each pair; its columns are "
            f"{', '.join(map(quoted, available))}. {advice} for the first text, or another one for the second"
        )
    return given


def _hub_table(spec: str, pair: str | None, others: Sequence[str]) -> tuple[pa.Table, str, str]:
    """A table with the column of texts and others, the name of that column, and of the source."""
    parts = _COLON.split(spec.removeprefix(_HUB))
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise InputError(f"{quoted(spec)} is not of the form hf:DATASET/CONFIG:SPLIT:COLUMN")
    dataset, split = parts[:2]
    path, config, revision = _dataset(dataset)
    loaded, where = open_split(path, config, revision, split), f"split {quoted(split)} of {path}"
    given = parts[2] if len(parts) == 3 else None
    column = _column(loaded.column_names, given, pair, others, where, _NAMED["hub"])
    table, _ = select_columns(loaded, [column, *others], where)
    return table, column, where


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
