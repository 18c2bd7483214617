"""Tables in files: parquet, csv, tsv, jsonl, or txt with one text per line."""

import hashlib
import json
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from permafrost.stages.corpus.data_files import FORMATS, data_files
from permafrost.stages.corpus.names import require_columns
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted

_BLOCK_BYTES = 1 << 24
"""Block size for reading. A row must fit into one block; some documents exceed the default of 1 MiB."""


def file_format(path: Path) -> str:
    """The format by extension, of one file or of several files of the same format.

    Raises:
        InputError: no such file, an empty one, an unknown extension; see also `data_files`.
    """
    checked_path(path, "the file")
    first, *_ = [_format_of_one(part) for part in data_files(path)]
    return first


def _format_of_one(path: Path) -> str:
    require_readable(path, FORMATS)
    return FORMATS[path.suffix.lower()]


def require_readable(path: Path, extensions: Collection[str]) -> None:
    """Check that a path is that of a file with content and with one of these extensions.

    Raises:
        InputError: it is not.
    """
    if not path.exists():
        raise InputError(
            f"there is no file {path}; relative paths count from the working folder {Path.cwd()}"
        )
    if path.suffix.lower() not in extensions:
        raise InputError(
            f"{path} has the extension {quoted(path.suffix)}; known are {', '.join(extensions)}"
        )
    if not path.is_file():
        raise InputError(f"{path} is a device or a pipe; give a file, which can be read again")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); give at least one text")


def file_identity(path: Path) -> dict[str, str]:
    """All that determines what is read from a file: its extension and a digest of its bytes."""
    return {"format": data_files(path)[0].suffix.lower(), "sha256": file_sha256(path)}


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file, 64 hex digits; for several files that of their digests' lines."""
    parts = data_files(path)
    if parts != [path]:
        lines = "\n".join(map(file_sha256, parts))
        return hashlib.sha256(lines.encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def column_names(path: Path) -> list[str]:
    """The columns of a file, or of the first of several; for jsonl the fields of the first row.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    with _opened(path) as (names, _):
        return names


def first_row(path: Path) -> dict[str, Any]:
    """The values of the first row by column, of the first file if there are several; empty without rows, and
    of plain text.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    with _opened(path) as (_, rows):
        return next(rows, {})


@contextmanager
def _opened(path: Path) -> Generator[tuple[list[str], Iterator[dict[str, Any]]]]:
    """The columns of the first file, and its first rows as they are read."""
    kind, path = file_format(path), data_files(path)[0]
    try:
        match kind:
            case "parquet":
                with pa.parquet.ParquetFile(path, memory_map=True) as file:
                    yield file.schema_arrow.names, _first_rows(file.iter_batches(batch_size=1))
            case "csv" | "tsv":
                with pa.csv.open_csv(path, *csv_options(kind)) as head:
                    yield head.schema.names, _first_rows(head)
            case "jsonl":
                first = _first_object(path)
                yield list(first), iter([first])
            case _:
                yield ["text"], iter(())
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, error) from error


def _first_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.slice(0, 1).to_pylist()


def read_columns(
    path: Path,
    texts: Sequence[str],
    labels: Sequence[str],
    negatives: Sequence[str] = (),
    *,
    ids: Sequence[str] = (),
    optional: Sequence[str] = (),
    lists: Sequence[str] = (),
) -> pa.Table:
    """Read some columns of a file, or of several files in order.

    `texts` are read as strings whatever they look like ("2020-01-01"), as are `negatives`, which may be
    lists. `ids` keep their digits: they are read as text from csv, else unchanged. `optional` are texts that
    the file, or a row of it, may lack; `lists` are of numbers or texts, in csv as text.

    Raises:
        InputError: a file is missing, empty, unreadable or broken, lacks a column, or has one of another type
            than the first file.
    """
    kind = file_format(path)
    parts = [
        _read_one(part, kind, texts, labels, negatives, ids, optional, lists)
        for part in data_files(path)
    ]
    try:
        return pa.concat_tables(parts, promote_options="permissive") if len(parts) > 1 else parts[0]
    except pa.ArrowException as error:
        raise InputError(
            f"the files of {path} cannot be put together: {error}; give a column one type in all of them"
        ) from error


def _read_one(
    path: Path,
    kind: str,
    texts: Sequence[str],
    labels: Sequence[str],
    negatives: Sequence[str],
    ids: Sequence[str],
    optional: Sequence[str],
    lists: Sequence[str],
) -> pa.Table:
    if optional and kind != "jsonl":
        texts = [*texts, *(name for name in optional if name in column_names(path))]
    try:
        match kind:
            case "parquet":
                return _parquet(path, [*texts, *labels, *negatives, *ids, *lists])
            case "csv" | "tsv":
                return _csv(path, [*texts, *negatives, *ids, *lists], labels)
            case "jsonl":
                return _jsonl(path, texts, labels, negatives, ids, optional, lists)
            case _:
                return _txt(path, [*texts, *labels, *negatives, *ids, *lists])
    except InputError:
        raise
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as {path.suffix}: {error}; repair the file, or rename it if it has "
        "another format"
    )


def _parquet(path: Path, wanted: Sequence[str]) -> pa.Table:
    # A plain file rather than a dataset, which would turn folder names such as year=2020 into columns.
    with pa.parquet.ParquetFile(path, memory_map=True) as file:
        require_columns(file.schema_arrow.names, wanted, str(path))
        return file.read(columns=list(dict.fromkeys(wanted)))


def csv_options(kind: str) -> tuple[pa.csv.ReadOptions, pa.csv.ParseOptions]:
    """How files of the format `csv` or `tsv` are read."""
    reading = pa.csv.ReadOptions(block_size=_BLOCK_BYTES)
    if kind == "tsv":
        # Quotation marks in tsv files (GLUE's, BEIR's) are part of the text.
        return reading, pa.csv.ParseOptions(delimiter="\t", quote_char=False)
    return reading, pa.csv.ParseOptions(newlines_in_values=True)


def _csv(path: Path, texts: Sequence[str], labels: Sequence[str]) -> pa.Table:
    options = csv_options(path.suffix.lower()[1:])
    wanted = [*texts, *labels]
    as_bytes = {name: pa.large_binary() for name in texts}
    converting = pa.csv.ConvertOptions(column_types=as_bytes)
    with pa.csv.open_csv(path, *options, converting) as head:
        require_columns(head.schema.names, wanted, str(path))
    # Bytes, not strings, so that the later check for UTF-8 can name the row.
    converting = pa.csv.ConvertOptions(
        column_types=as_bytes, include_columns=list(dict.fromkeys(wanted))
    )
    return pa.csv.read_csv(path, *options, converting)


def _jsonl(
    path: Path,
    texts: Sequence[str],
    labels: Sequence[str],
    negatives: Sequence[str],
    ids: Sequence[str],
    optional: Sequence[str],
    lists: Sequence[str],
) -> pa.Table:
    first = _first_object(path)
    require_columns(list(first), (*texts, *labels, *negatives, *ids, *lists), str(path))
    types = {name: pa.large_string() for name in (*texts, *optional)}
    types |= {name: _json_type(first[name], name, path) for name in labels}
    types |= {name: _json_text_type(path, name) for name in negatives}
    types |= {name: _json_id_type(first[name], name, path) for name in ids}
    types |= {name: _json_list_type(first[name], name, path) for name in lists}
    fields = list(types.items())
    # With an explicit schema, other columns are not parsed and cannot fail.
    parsing = pa.json.ParseOptions(
        explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
    )
    return pa.json.read_json(path, pa.json.ReadOptions(block_size=_BLOCK_BYTES), parsing)


def _first_object(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} does not begin with a JSON object on one line ({error}): {quoted(line[:60])}; jsonl "
            "is one object per line"
        ) from error
    if not isinstance(value, dict):
        raise InputError(
            f"{path} begins with a JSON {type(value).__name__}, expected an object such as "
            '{"text": "..."} on every line'
        )
    return value


def _json_type(value: object, name: str, path: Path) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int | float):
        return pa.float64()
    if isinstance(value, str):
        return pa.large_string()
    raise InputError(
        f"row 1 of {path}: the label in column {quoted(name)} is {quoted(value)}, expected a number or text"
    )


def _json_list_type(value: object, name: str, path: Path) -> pa.DataType:
    if not isinstance(value, list) or not value:
        raise InputError(
            f"row 1 of {path} has {quoted(value)} in column {quoted(name)}, expected a list of numbers or "
            "texts"
        )
    return pa.list_(_json_type(value[0], name, path))


def _json_id_type(value: object, name: str, path: Path) -> pa.DataType:
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.int64()
    if isinstance(value, str):
        return pa.large_string()
    raise InputError(
        f"row 1 of {path}: the id in column {quoted(name)} is {quoted(value)}, expected text or a "
        "whole number"
    )


def _json_text_type(path: Path, name: str) -> pa.DataType:
    """Text or lists of text, judging by the first value that is not null."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        values = (json.loads(line).get(name) for line in file if line.strip())
        try:
            first = next((value for value in values if value is not None), None)
        except (ValueError, RecursionError, AttributeError) as error:
            raise InputError(
                f"{path} has a line that is not a JSON object ({error}); jsonl is one object per line"
            ) from error
    if first is None:
        return pa.null()
    return pa.list_(pa.large_string()) if isinstance(first, list) else pa.large_string()


def _txt(path: Path, wanted: Sequence[str]) -> pa.Table:
    require_columns(["text"], wanted, f"{path} (plain text, one text per line)")
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    return pa.table(
        {"text": pa.array([line.removesuffix(b"\r") for line in lines], pa.large_binary())}
    )
