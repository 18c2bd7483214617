"""Labels of csv and tsv, which have no types: Arrow guesses one for each file by itself."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from permafrost.stages.corpus.json_files import arrow_input

Reading = tuple[pa.csv.ReadOptions, pa.csv.ParseOptions]


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of csv was read as text, be it no UTF-8."""
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def with_names(
    parts: Sequence[pa.Table],
    labels: Iterable[str],
    written: Callable[[str], Sequence[pa.ChunkedArray]],
) -> list[pa.Table]:
    """The tables of one file or several, with labels as text where their types differ, where they were read
    as dates or times, and where different ones were read as one number, as 1 and 01, or 0e1 and 0e2.

    Args:
        parts: a table for each file.
        labels: names of columns.
        written: a column of each file as the text that stands there, without spaces around it.
    """
    made = list(parts)
    for name in labels:
        columns = [part.column(name) for part in parts]
        families = {_family(column.type) for column in columns}
        known = families - {"nothing"}
        if not known or families == {"text"}:
            continue
        # Grades that are no whole numbers are no classes.
        if known == {"number"} and not all(map(is_whole, columns)):
            continue
        texts = written(name)
        is_mixed = len(known) > 1 or "text" in known
        if is_mixed or more_distinct(texts, columns):
            made = [
                part
                if is_text(column.type)
                else part.set_column(part.schema.get_field_index(name), name, text)
                for part, column, text in zip(made, columns, texts, strict=True)
            ]
    return made


def typed(part: pa.Table, labels: Iterable[str]) -> pa.Table:
    """A table that was read as text, with labels as a csv file with them would have them.

    Args:
        part: without nulls in the columns of labels.
        labels: names of columns.
    """
    guessed = _guessed(part, names := list(labels))
    return with_names([guessed], names, lambda name: [_trimmed(part, name)])[0]


def with_written(table: pa.Table, read: pa.Table, name: str) -> pa.Table:
    """A table with a column as it stands in the one that was read as text, without spaces around it."""
    return table.set_column(table.schema.get_field_index(name), name, _trimmed(read, name))


def _trimmed(read: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.utf8_trim_whitespace(read.column(name))


def _guessed(part: pa.Table, names: Iterable[str]) -> pa.Table:
    for name in names:
        pa.csv.write_csv(part.select([name]), file := io.BytesIO())
        parsing = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        column = pa.csv.read_csv(pa.py_buffer(file.getvalue()), parse_options=parsing).column(name)
        part = part.set_column(part.schema.get_field_index(name), name, column)
    return part


def more_distinct(texts: Sequence[pa.ChunkedArray], columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether labels are more when told apart as text, or were read as dates or times."""
    if any(pa.types.is_temporal(column.type) for column in columns):
        return True
    numbers, written = set[Any](), set[str]()
    for text, column in zip(texts, columns, strict=True):
        if pa.types.is_boolean(column.type):
            return False
        numbers.update(pc.unique(column.drop_null()).to_pylist())
        # Nothing, and what stands for it, is no label.
        present = text.filter(column.is_valid())
        if pa.types.is_floating(column.type):
            present = pc.replace_substring_regex(present, r"\.0*$", "")
        written.update(pc.unique(present).to_pylist())
    return len(written) > len(numbers)


def as_text(paths: Sequence[Path], options: Reading, name: str) -> pa.ChunkedArray:
    """A column of one file or several as the text that stands there, without spaces around it."""
    converting = pa.csv.ConvertOptions(column_types={name: pa.string()}, include_columns=[name])
    columns = [
        pa.csv.read_csv(arrow_input(path), *options, converting).column(name) for path in paths
    ]
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pc.utf8_trim_whitespace(pa.chunked_array(chunks, pa.string()))


def is_whole(column: pa.ChunkedArray) -> bool:
    """Whether labels that are numbers are whole ones."""
    if not pa.types.is_floating(column.type):
        return True
    return pc.all(pc.equal(pc.floor(column), column)).as_py() is True


def _family(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    return "text" if is_text(kind) else str(kind)
