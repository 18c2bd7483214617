"""Judgements of relevance in text files: csv, tsv, and TREC's, which have no header."""

import csv
import io
import zlib
from collections.abc import Sequence
from pathlib import Path

from permafrost.stages.corpus.data_files import FORMATS, extension_of
from permafrost.stages.corpus.text_format import opened_bytes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_POSITIONS = {3: (0, 1, 2), 4: (0, 2, 3)}
"""Positions of query, document and grade in rows without a header, by number of columns: four are TREC's,
whose second one is unused."""


def text_rows(path: Path) -> list[list[str]]:
    """The rows of a file as cells of text, without blank lines; a header, if there is one, is the first.

    Raises:
        InputError: the file cannot be read, has no rows, or a row has another number of cells.
    """
    try:
        with opened_bytes(path) as content:
            file = io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
            if FORMATS.get(extension_of(path)) == "csv":
                reader = csv.reader(file)
                rows = [(reader.line_num, row) for row in reader if any(row)]
            else:
                lines = [(n, line.rstrip("\r\n")) for n, line in enumerate(file, 1) if line.strip()]
                separator = "\t" if lines and "\t" in lines[0][1] else None
                rows = [(n, line.split(separator)) for n, line in lines]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as judgements: {quoted(error)}; repair the file"
        ) from error
    if not rows:
        raise InputError(f"{path} has no rows; give at least one, or leave its split out")
    n_cells = len(rows[0][1])
    for number, row in rows:
        if len(row) != n_cells:
            raise InputError(
                f"line {number} of {path} has {len(row)} cells and the first one {n_cells}: "
                f"{quoted(' '.join(row))}; repair the line"
            )
    return [[cell.strip() for cell in row] for _, row in rows]


def positions(rows: Sequence[Sequence[str]], path: Path) -> tuple[int, ...]:
    """Where query, document and grade stand in rows without a header.

    Raises:
        InputError: these are no judgements without a header.
    """
    first, n = rows[0], len(rows[0])
    is_headless = n in _POSITIONS and first[-1].lstrip("+-").isdigit()
    if not is_headless:
        raise InputError(
            f"{path} begins with {', '.join(map(quoted, first))}: neither columns whose names are known "
            "(query-id, corpus-id, score) nor a judgement without a header (query, document, whole number; "
            "or TREC's query, 0, document, whole number). Write qrels_query_id, qrels_document_id and "
            "relevance with the names of the columns"
        )
    if n == 4 and (odd := next((r for r in rows if r[1] not in ("0", "Q0")), None)) is not None:
        raise InputError(
            f"{path} has four columns and no header, but not TREC's, as its second column has "
            f"{quoted(odd[1])} instead of 0; give a first line with the names query-id, corpus-id, score"
        )
    return _POSITIONS[n]


def grade_in(cell: str, row: int, path: Path) -> float:
    """The grade that a cell holds; raises InputError if it is no number."""
    try:
        return float(cell)
    except ValueError as error:
        raise InputError(
            f"row {row} of {path} has the relevance {quoted(cell)}; judgements are whole numbers"
        ) from error
