"""Tables in files: parquet, csv, tsv, jsonl, json, or txt with one text per line; text may be packed."""

import codecs
import hashlib
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from permafrost.stages.corpus.csv_labels import Reading, as_text, with_names
from permafrost.stages.corpus.csv_quotes import require_closed_quotes
from permafrost.stages.corpus.data_files import FORMATS, data_files, extension_of
from permafrost.stages.corpus.json_files import BLOCK_BYTES, JsonFile, arrow_input
from permafrost.stages.corpus.names import CHOSEN_BY_FIELDS, require_columns
from permafrost.stages.corpus.single_column import read_single_column
from permafrost.stages.corpus.text_format import (
    PACKED,
    USUAL,
    UTF_8,
    TextFormat,
    name_the_delimiter,
    name_the_encoding,
    opened_bytes,
    opened_text,
)
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted

_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
_ARROW = (".arrow", ".feather")
BROKEN = (pa.ArrowException, UnicodeDecodeError, EOFError, zlib.error, OSError)
"""What readers raise for a file that is not what its extension says."""
_DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Those that are usual."""
_MOST_OF_HEADER = 1 << 16


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
    return FORMATS[extension_of(path)]


def require_readable(path: Path, extensions: Collection[str]) -> None:
    """Check that a path is that of a file with content and with one of these extensions.

    Raises:
        InputError: it is not.
    """
    if not path.exists():
        raise _missing(path)
    if path.suffix.lower() in _SPREADSHEETS:
        raise InputError(
            f"{path} is a spreadsheet, which may have several sheets, formulas and dates; save the sheet as "
            "CSV (in Excel 'CSV UTF-8', in LibreOffice 'Text CSV') and name that file"
        )
    if path.suffix.lower() in _ARROW:
        raise InputError(
            f"{path} is a file of Arrow's; write it as parquet (in Python "
            "datasets.Dataset.from_file(FILE).to_parquet('texts.parquet')) and name that file"
        )
    if not {path.suffix.lower(), extension_of(path)} & set(extensions):
        raise InputError(
            f"{path} has the extension {quoted(path.suffix)}; known are {', '.join(extensions)}"
        )
    if not path.is_file():
        raise InputError(f"{path} is a device or a pipe; give a file, which can be read again")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); write its rows, of tables a header first")


def format_with(path: Path, delimiter: str | None, encoding: str) -> TextFormat:
    """How a file is read, given what its extension does not say.

    Raises:
        InputError: a delimiter or an encoding for a file that has none, or text in UTF-16 without its name;
            see also `file_format`.
    """
    kind = file_format(path)
    if delimiter is not None and kind not in ("csv", "tsv"):
        raise InputError(
            f"delimiter is {quoted(delimiter)}, but {path} is {kind}, which has none; leave it out"
        )
    if encoding != UTF_8 and kind == "parquet":
        raise InputError(
            f"encoding is {quoted(encoding)}, but {path} is parquet, whose text is UTF-8; leave it out"
        )
    if encoding == UTF_8 and kind != "parquet" and _is_utf_16(path):
        raise InputError(f"{path} begins like text in UTF-16; {name_the_encoding('utf-16')}")
    return TextFormat(encoding, delimiter)


def file_identity(path: Path) -> dict[str, str]:
    """All that determines what is read from a file: its extension and a digest of its bytes, both as they are
    once it is unpacked."""
    extension = extension_of(data_files(path)[0]).removesuffix(PACKED)
    return {"format": extension, "sha256": content_sha256(path)}


def content_sha256(path: Path) -> str:
    """As `file_sha256`, of what a packed file holds: gzip writes the time into a file."""
    parts = data_files(path)
    if parts != [path]:
        return _of_lines(map(content_sha256, parts))
    try:
        with opened_bytes(path) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except BROKEN as error:
        raise _unreadable(path, error) from error


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file, 64 hex digits; for several files that of their digests' lines."""
    parts = data_files(path)
    if parts != [path]:
        return _of_lines(map(file_sha256, parts))
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _of_lines(digests: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def column_names(path: Path, how: TextFormat = USUAL) -> list[str]:
    """The columns of a file, or of the first of several; for jsonl and json the fields that any row of any
    file has.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    kind, parts = file_format(path), data_files(path)
    with _named(path := parts[0], how):
        match kind:
            case "parquet":
                with pa.parquet.ParquetFile(path, memory_map=True) as file:
                    return file.schema_arrow.names
            case "csv" | "tsv":
                with pa.csv.open_csv(arrow_input(path), *csv_options(kind, how)) as head:
                    return head.schema.names
            case "jsonl" | "json":
                of_parts = [JsonFile(part, kind, how).columns() for part in parts]
                return list(dict.fromkeys(name for names in of_parts for name in names))
            case _:
                return ["text"]


def first_values(path: Path, names: Sequence[str], how: TextFormat = USUAL) -> dict[str, Any]:
    """The values of columns in the first row, of the first file if there are several; in jsonl and json the
    first ones that are not null. Empty without rows, and of plain text.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    kind, path = file_format(path), data_files(path)[0]
    with _named(path, how):
        match kind:
            case "parquet":
                with pa.parquet.ParquetFile(path, memory_map=True) as file:
                    return next(_first_rows(file.iter_batches(batch_size=1)), {})
            case "csv" | "tsv":
                with pa.csv.open_csv(arrow_input(path), *csv_options(kind, how)) as head:
                    return next(_first_rows(head), {})
            case "jsonl" | "json":
                found = JsonFile(path, kind, how).first_values(names)
                return {name: value for name, (_, value) in found.items()}
            case _:
                return {}


@contextmanager
def _named(path: Path, how: TextFormat) -> Generator[None]:
    """Errors of readers name the file."""
    try:
        yield
    except BROKEN as error:
        raise _unreadable(path, error, how) from error


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
    how: TextFormat = USUAL,
) -> pa.Table:
    """Read some columns of a file, or of several files in order.

    `texts` are read as strings whatever they look like ("2020-01-01"), as are `negatives`, which may be
    lists. `ids` keep their digits: they are read as text from csv, else unchanged. `optional` are texts that
    the file, or a row of it, may lack; `lists` are of numbers or texts, in csv as text.

    Raises:
        InputError: a file is missing, empty, unreadable or broken, lacks a column, or has one of another type
            than the first file.
    """
    kind, files = file_format(path), data_files(path)
    # A field that no row of one file has may be in another one.
    known = column_names(path, how) if len(files) > 1 and kind in ("jsonl", "json") else None
    parts = [
        _read_one(part, kind, how, texts, labels, negatives, ids, optional, lists, known)
        for part in files
    ]
    if kind in _DELIMITERS:
        options = csv_options(kind, how)
        with _named(path, how):
            parts = with_names(
                parts,
                dict.fromkeys(labels),
                lambda name: [as_text([file], options, name) for file in files],
            )
    try:
        return pa.concat_tables(parts, promote_options="permissive") if len(parts) > 1 else parts[0]
    except pa.ArrowException as error:
        raise InputError(
            f"the files of {path} cannot be put together: {error}; give a column one type in all of them"
        ) from error


def with_label_as_text(table: pa.Table, path: Path, how: TextFormat, name: str) -> pa.Table:
    """The table of a file, of csv or tsv with a label column as the text that stands there. Other files have
    types, and their tables stay as they are.

    Args:
        table: as `read_columns` read it.
        path: of the file, or of several.
        how: it was read.
        name: of the column.
    """
    if (kind := file_format(path)) not in _DELIMITERS:
        return table
    with _named(path, how):
        column = as_text(data_files(path), csv_options(kind, how), name)
    return table.set_column(table.schema.get_field_index(name), name, column)


def _read_one(
    path: Path,
    kind: str,
    how: TextFormat,
    texts: Sequence[str],
    labels: Sequence[str],
    negatives: Sequence[str],
    ids: Sequence[str],
    optional: Sequence[str],
    lists: Sequence[str],
    known: Sequence[str] | None,
) -> pa.Table:
    if optional and kind not in ("jsonl", "json"):
        texts = [*texts, *(name for name in optional if name in column_names(path, how))]
    try:
        match kind:
            case "parquet":
                return _parquet(path, [*texts, *labels, *negatives, *ids, *lists])
            case "csv" | "tsv":
                return _csv(path, kind, how, [*texts, *negatives, *ids, *lists], labels)
            case "jsonl" | "json":
                file = JsonFile(path, kind, how)
                return file.read(texts, labels, negatives, ids, optional, lists, known)
            case _:
                return _txt(path, how, [*texts, *labels, *negatives, *ids, *lists])
    except InputError:
        raise
    except BROKEN as error:
        raise _unreadable(path, error, how) from error


def _missing(path: Path) -> InputError:
    return InputError(
        f"there is no file {path}; relative paths count from the working folder {Path.cwd()}"
    )


def _unreadable(path: Path, error: Exception, how: TextFormat = USUAL) -> InputError:
    if isinstance(error, FileNotFoundError):
        return _missing(path)
    advice = "repair the file, or rename it if it has another format"
    if isinstance(error, UnicodeDecodeError):
        advice = name_the_encoding("cp1252" if how.encoding == UTF_8 else UTF_8)
    elif how.delimiter is None and isinstance(error, pa.ArrowInvalid):
        # A semicolon in the place of commas, and commas inside the texts.
        other = likely_delimiter(path, how.encoding)
        advice += "" if other is None else f". {name_the_delimiter(other)}"
        if file_format(path) == "tsv" and '"' in str(error):
            advice += f"; {_QUOTED}"
    return InputError(f"{path} cannot be read as {extension_of(path)}: {error}; {advice}")


def _is_utf_16(path: Path) -> bool:
    """Whether text begins with the mark that Windows writes before it."""
    try:
        with opened_bytes(data_files(path)[0]) as content:
            return content.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    except BROKEN:
        return False


def delimiter_advice(path: Path, how: TextFormat) -> str:
    """What to do about a file of csv or tsv whose header has another delimiter, as the end of a message;
    empty if it does not."""
    other = likely_delimiter(path, how.encoding) if how.delimiter is None else None
    return "" if other is None else f". {name_the_delimiter(other)}"


def likely_delimiter(path: Path, encoding: str = UTF_8) -> str | None:
    """What seems to separate the fields of csv or tsv; None if it is what is usual there.

    Args:
        path: that was read with the usual delimiter.
        encoding: of the file.
    """
    if (usual := _DELIMITERS.get(file_format(path))) is None:
        return None
    try:
        with opened_text(data_files(path)[0], TextFormat(encoding)) as lines:
            header = lines.readline(_MOST_OF_HEADER)
    except BROKEN:
        return None
    return None if usual in header else next((c for c in ";\t|," if c in header), None)


def _parquet(path: Path, wanted: Sequence[str]) -> pa.Table:
    # A plain file rather than a dataset, which would turn folder names such as year=2020 into columns.
    with pa.parquet.ParquetFile(path, memory_map=True) as file:
        require_columns(file.schema_arrow.names, wanted, str(path))
        return file.read(columns=list(dict.fromkeys(wanted)))


def csv_options(kind: str, how: TextFormat = USUAL) -> Reading:
    """How files of the format `csv` or `tsv` are read."""
    reading = pa.csv.ReadOptions(block_size=BLOCK_BYTES, encoding=how.encoding)
    delimiter = how.delimiter or _DELIMITERS[kind]
    if kind == "tsv":
        # Quotation marks in tsv files (GLUE's, BEIR's) are part of the text.
        return reading, pa.csv.ParseOptions(delimiter=delimiter, quote_char=False)
    return reading, pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)


def _csv(
    path: Path, kind: str, how: TextFormat, texts: Sequence[str], labels: Sequence[str]
) -> pa.Table:
    wanted, options = [*texts, *labels], csv_options(kind, how)
    if kind == "csv":
        require_closed_quotes(path, how)
    as_bytes = {name: pa.large_binary() for name in texts}
    converting = pa.csv.ConvertOptions(column_types=as_bytes)
    with pa.csv.open_csv(arrow_input(path), *options, converting) as head:
        names = head.schema.names
        require_columns(names, wanted, str(path), CHOSEN_BY_FIELDS + delimiter_advice(path, how))
    if len(names) == 1 and names == list(as_bytes):
        table = read_single_column(path, how, options, names[0])
    else:
        # Bytes, not strings, so that the later check for UTF-8 can name the row.
        converting = pa.csv.ConvertOptions(
            column_types=as_bytes, include_columns=list(dict.fromkeys(wanted))
        )
        table = pa.csv.read_csv(arrow_input(path), *options, converting)
    if kind == "tsv":
        _refuse_quoted(table, texts, path)
    return table


def _refuse_quoted(table: pa.Table, texts: Iterable[str], path: Path) -> None:
    """Raises: InputError: every text that begins with a quotation mark is quoted as in csv: it ends with one,
    those inside are doubled, and there are some."""
    for name in texts:
        column = table.column(name)
        begun = column.filter(pc.starts_with(column, '"'))
        inside = pc.binary_slice(begun, 1, -1)
        bare = pc.match_substring(pc.replace_substring(inside, '""', ""), '"')
        is_closed = pc.and_(pc.ends_with(begun, '"'), pc.greater(pc.binary_length(begun), 1))
        has_doubled = pc.match_substring(inside, '""')
        if pc.all(pc.and_not(is_closed, bare)).as_py() and pc.any(has_doubled).as_py():
            shown = begun.filter(has_doubled)[0].as_py()
            raise InputError(
                f"column {quoted(name)} of {path} is quoted as in csv, such as {quoted(shown)}, and "
                f"quotation marks in .tsv are part of the text; {_QUOTED}"
            )


_QUOTED = (
    "for a file with quoted fields call it .csv, with 'delimiter: \"\\t\"' beside its files in kind 'files' "
    "or 'tables' (on the command line: --delimiter '\\t'); elsewhere save it as jsonl or parquet"
)


def _txt(path: Path, how: TextFormat, wanted: Sequence[str]) -> pa.Table:
    require_columns(["text"], wanted, f"{path} (plain text, one text per line)")
    lines = _utf_8(path, how).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    return pa.table(
        {"text": pa.array([line.removesuffix(b"\r") for line in lines], pa.large_binary())}
    )


def _utf_8(path: Path, how: TextFormat) -> bytes:
    """The content of a file in UTF-8, in which it need not be right."""
    if how.encoding == UTF_8:
        with opened_bytes(path) as content:
            return content.read()
    with opened_text(path, how) as text:
        return text.read().encode()
