"""Queries with labelled candidates: one row per candidate, or lists of positive and negative ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from permafrost.stages.corpus.names import (
    ANSWER,
    ASKED,
    BINARY,
    NEGATIVES,
    OWN_ID,
    POSITIVES,
    QUERY_ID,
    find_column,
)
from permafrost.stages.corpus.table_files import column_names, read_columns
from permafrost.stages.corpus.values import ids_of, list_rows, texts_of, zeros_and_ones
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class CandidateColumns(BaseModel):
    """Names of columns; a column whose name is not given may also have another usual name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_id: str = "query_id"
    """Without such a column, equal queries count as one."""
    query: str = "query"
    """Column with the query."""
    document: str = "document"
    """Column with the candidate."""
    label: str = "label"
    """1 for a document that answers the query, else 0."""


@dataclass(frozen=True)
class Candidates:
    """One row per candidate. Texts may be blank."""

    where: str
    """What messages call the rows."""
    document: str
    """Name of the document column."""
    keys: list[str]
    """Ids of the queries."""
    texts: pa.Table
    """The query and document columns, as read."""
    labels: list[int]
    of_lists: bool = False
    """Whether rows of the file hold lists."""

    def queries_and_documents(self) -> tuple[list[str], list[str]]:
        """Both texts of every row; raises InputError if a value is missing or is not text."""
        first, second = (texts_of(self.texts, n, self.where) for n in self.texts.column_names)
        return first, second


def read_candidates(config: CandidateColumns, path: Path) -> Candidates:
    """The candidates of a file, in its order; in a row with lists the positive ones come first.

    With lists (`positive`, `negative`) every row is a separate query, unless the file has ids.

    Raises:
        InputError: there is no such file or column, or several that could be meant, no rows, or a value is
            missing or of another type.
    """
    names, where = column_names(path), str(path)
    query = find_column("query", config.query, ASKED, names, where)
    lists = _list_columns(config, names, where)
    if lists is not None:
        return _of_lists(path, names, query, lists)
    has_ids = config.query_id != QUERY_ID[0] or any(n.casefold() in QUERY_ID for n in names)
    # Without an id column the query's text is its id; a column `id` may just number the rows, so it is not
    # used.
    key = find_column("query_id", config.query_id, QUERY_ID, names, where) if has_ids else query
    document = find_column("document", config.document, ANSWER, names, where)
    label = find_column("label", config.label, BINARY, names, where)
    table = _filled(read_columns(path, [query, document], [label], ids=[key]), path)
    keys, labels = ids_of(table, key, where), zeros_and_ones(table, label, where)
    return Candidates(where, document, keys, table.select([query, document]), labels)


def _list_columns(
    config: CandidateColumns, names: Sequence[str], where: str
) -> tuple[str, str] | None:
    """The columns with lists of positives and negatives, if there are both and no column of documents."""
    lower = [name.casefold() for name in names]
    has_document = config.document in names or any(n in ANSWER for n in lower)
    if has_document or not all(any(n in usual for n in lower) for usual in (POSITIVES, NEGATIVES)):
        return None
    return (
        find_column("positive", POSITIVES[0], POSITIVES, names, where),
        find_column("negative", NEGATIVES[0], NEGATIVES, names, where),
    )


def _of_lists(path: Path, names: Sequence[str], query: str, lists: tuple[str, str]) -> Candidates:
    ids = [n for n in names if n.casefold() in (*QUERY_ID, *OWN_ID)][:1]
    table, values = list_rows(path, lists, ids=ids, single=[query])
    table, where = _filled(table, path), str(path)
    keys = ids_of(table, ids[0], where) if ids else [str(i) for i in range(table.num_rows)]
    queries = texts_of(table, query, where)
    rows = [
        (row, document, label)
        for row in range(table.num_rows)
        for name, label in zip(lists, (1, 0), strict=True)
        for document in values[name][row]
    ]
    for row, document, _ in rows:
        if not isinstance(document, str):
            raise InputError(
                f"row {row + 1} of {where} has {quoted(document)} in a list of "
                f"{' or '.join(map(quoted, lists))}, expected text; repair the row"
            )
    texts = {
        "query": pa.array([queries[row] for row, _, _ in rows], pa.large_string()),
        "document": pa.array([document for _, document, _ in rows], pa.large_string()),
    }
    return Candidates(
        f"the candidates of {path}",
        "document",
        [keys[row] for row, _, _ in rows],
        pa.table(texts),
        [label for _, _, label in rows],
        of_lists=True,
    )


def _filled(table: pa.Table, path: Path) -> pa.Table:
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows; give it queries and candidates, or leave it out")
    return table
