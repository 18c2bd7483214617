"""Csv and tsv with a single column, in which a blank line is a row whose text is blank: Arrow drops it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from permafrost.stages.corpus.csv_labels import Reading
from permafrost.stages.corpus.json_files import arrow_input
from permafrost.stages.corpus.text_format import TextFormat, opened_text


def read_single_column(path: Path, how: TextFormat, options: Reading, name: str) -> pa.Table:
    """The only column of a file, as bytes. Blank lines before the header and after the last text are no rows.

    Args:
        path: of the file.
        how: it is written.
        options: with which files of several columns are read.
        name: of the column.
    """
    reading, parsing = options
    reading.skip_rows, parsing.ignore_empty_lines = _blank_lines_before(path, how), False
    # Only what is blank without quotation marks is null.
    converting = pa.csv.ConvertOptions(
        column_types={name: pa.large_binary()},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = pa.csv.read_csv(arrow_input(path), reading, parsing, converting)
    column = table.column(name)
    n_rows = len(column)
    while n_rows and not column[n_rows - 1].is_valid:
        n_rows -= 1
    return pa.table({name: pc.fill_null(column.slice(0, n_rows), b"")})


def _blank_lines_before(path: Path, how: TextFormat) -> int:
    with opened_text(path, how) as lines:
        return next((n for n, line in enumerate(lines) if line.rstrip("\n")), 0)
