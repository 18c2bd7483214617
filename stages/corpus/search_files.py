"""The files of a retrieval data set: queries, documents, and relevance judgements.

Read as BEIR, TREC and mteb write them: parquet, jsonl, csv or tsv, judgements with or without a header.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from permafrost.stages.corpus.data_files import (
    FORMATS,
    TABLES,
    data_files,
    extension_of,
    find_file,
)
from permafrost.stages.corpus.judgement_text import grade_in, positions, text_rows
from permafrost.stages.corpus.names import (
    DOCUMENT,
    DOCUMENT_ID,
    DOCUMENT_IDS,
    OWN_ID,
    QUERY,
    QUERY_ID,
    RELEVANCE,
    RELEVANCES,
    find_column,
)
from permafrost.stages.corpus.table_files import column_names, read_columns
from permafrost.stages.corpus.values import (
    decoded,
    holds_lists,
    ids_of,
    list_rows,
    numbers_of,
    require_equal_lengths,
    sum_of,
    texts_of,
    unique_ids_of,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

QRELS = (*TABLES, ".txt", ".qrels", ".trec")
MOST_OF_A_GRADE = 10_000
"""Absolute value of a grade of relevance; usual ones are below 10."""


class SearchColumns(BaseModel):
    """Names of files and columns; one whose name is not given may also have another usual name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """Folder of the files."""
    corpus: str = "corpus"
    """File of the documents; like all files with or without its extension."""
    queries: str = "queries"
    """File of the queries of all splits."""
    query_id: str = "query_id"
    """Column of the queries and of the judgements."""
    document_id: str = "doc_id"
    """Column of the documents and of the judgements."""
    qrels_query_id: str | None = None
    """Column in the judgements, if its name differs there."""
    qrels_document_id: str | None = None
    """Column in the judgements, if its name differs there."""
    query: str = "text"
    """Column with the text of a query."""
    document: str = "text"
    """Column with the text of a document."""
    title: str | None = "title"
    """Column whose text is put before the document's, separated by a space, if the file has it; null for
    none."""
    relevance: str | None = "score"
    """Column of the judgements; whole numbers, 0 and below are not relevant. null for none: every row names a
    relevant document."""

    @property
    def corpus_file(self) -> Path:
        """File of the documents; raises InputError if it is missing or there are several."""
        return find_file(Path(self.path), [self.corpus], "corpus")

    @property
    def queries_file(self) -> Path:
        """File of the queries; raises InputError if it is missing or there are several."""
        return find_file(Path(self.path), [self.queries], "queries")


def qrels_names(name: str) -> list[str]:
    """Possible names of a file of judgements: `qrels_test` may also be BEIR's `qrels/test`."""
    split = name.removeprefix("qrels_")
    if split == name:
        return [name]
    alone = ["qrels"] if split == "test" else []
    return [name, f"qrels/{split}", f"qrels-{split}", f"qrels.{split}", *alone]


def qrels_file(folder: str, name: str) -> Path:
    """A file of judgements.

    Raises:
        InputError: it is missing, or there are several.
    """
    return find_file(Path(folder), qrels_names(name), "qrels", QRELS)


def read_queries(config: SearchColumns) -> tuple[dict[str, str], str]:
    """The text of every query by its id, possibly blank, and the file they are from.

    Raises:
        InputError: there is no such file or column, there are no rows, or an id occurs twice.
    """
    path = config.queries_file
    names = column_names(path)
    key = _id_column("query_id", config.query_id, QUERY_ID, names, str(path))
    text = find_column("query", config.query, QUERY, names, str(path))
    table = read_rows(path, [text], [key])
    texts = texts_of(table, text, str(path))
    return dict(zip(unique_ids_of(table, key, str(path)), texts, strict=True)), str(path)


def read_documents(config: SearchColumns) -> tuple[dict[str, tuple[str, str]], str]:
    """Title and text of every document by its id, possibly blank, and the file they are from.

    Raises:
        InputError: there is no such file or column, there are no rows, or an id occurs twice.
    """
    path = config.corpus_file
    names, where = column_names(path), str(path)
    key = _id_column("document_id", config.document_id, DOCUMENT_ID, names, where)
    text = find_column("document", config.document, DOCUMENT, names, where)
    title, optional = config.title, ["title"]
    # Many collections have no titles, so the column is required only if the user names it.
    if title is None or title == "title":
        wanted = [text]
    else:
        title = find_column("title", title, [title], names, where)
        wanted, optional = [text, title], []
    table = read_rows(path, wanted, [key], optional=[] if title is None else optional)
    texts, titles = texts_of(table, text, where), [""] * table.num_rows
    if title is not None and title in table.column_names:
        values = decoded(table.column(title), title, where).to_pylist()
        titles = [value or "" for value in values]
    ids = unique_ids_of(table, key, where)
    return dict(zip(ids, zip(titles, texts, strict=True), strict=True)), where


def read_judgements(config: SearchColumns, path: Path) -> tuple[pa.Table, tuple[str, str, str]]:
    """Read a file of judgements; returns the table and its columns of query, document and relevance.

    A text file without a header has the columns query, document, relevance, or TREC's four. A row may hold a
    list of documents (`corpus-ids`), with or without a list of relevances; without, all are relevant. Where
    the config names no column of relevances, rows are as in a file with a header.

    Raises:
        InputError: a column is missing, there are no rows, or rows have different lengths.
    """
    if config.relevance is None:
        query, document = _judged_ids(config, column_names(path), str(path))
        table = read_rows(path, [], [query, document])
        every = pa.array(np.ones(table.num_rows))
        return table.append_column("relevance", every), (query, document, "relevance")
    if FORMATS.get(extension_of(path)) in ("parquet", "jsonl", "json"):
        if (listed := _of_lists(config, path)) is not None:
            return listed
        names = _judged(config, column_names(path), str(path))
        return read_rows(path, [], names[:2], [names[2]]), names
    parts = data_files(path)
    rows = text_rows(parts[0])
    has_lists = len(rows) > 1 and any(cell.startswith("[") for cell in rows[1])
    if has_lists and (listed := _of_lists(config, path)) is not None:
        return listed
    names, columns = _of_text(config, rows, parts[0])
    for part in parts[1:]:
        _, further = _of_text(config, text_rows(part), part)
        columns = [[*one, *more] for one, more in zip(columns, further, strict=True)]
    return pa.table(dict(zip(names, columns, strict=True))), names


def _of_text(
    config: SearchColumns, rows: Sequence[Sequence[str]], path: Path
) -> tuple[tuple[str, str, str], list[list[Any]]]:
    """Names and values of the columns of query, document and relevance; a header may be missing."""
    usual = {*QUERY_ID, *DOCUMENT_ID, *RELEVANCE, config.query_id, config.document_id}
    own = (config.qrels_query_id, config.qrels_document_id, config.relevance)
    usual |= {name for name in own if name is not None}
    if any(cell in usual or cell.casefold() in usual for cell in rows[0]):
        names = _judged(config, rows[0], str(path))
        at, rows = tuple(rows[0].index(name) for name in names), rows[1:]
    else:
        names = ("query", "document", "relevance")
        at = positions(rows, path)
    if not rows:
        raise InputError(f"{path} has no rows; give at least one, or leave its split out")
    columns: list[list[Any]] = [[row[i] for row in rows] for i in at]
    columns[2] = [grade_in(cell, row, path) for row, cell in enumerate(columns[2], start=1)]
    return names, columns


def _of_lists(config: SearchColumns, path: Path) -> tuple[pa.Table, tuple[str, str, str]] | None:
    """The judgements of a file whose rows hold lists of documents, one row each; None for other files."""
    names, where = column_names(path), str(path)
    usual = {*DOCUMENT_IDS, *DOCUMENT_ID, config.document_id, config.qrels_document_id}
    documents = [
        n for n in names if (n in usual or n.casefold() in usual) and holds_lists(path, [n])
    ]
    if len(documents) != 1:
        return None
    key = config.qrels_query_id or config.query_id
    query = (
        key
        if key in names
        else find_column("qrels_query_id", QUERY_ID[0], (*QUERY_ID, *OWN_ID), names, where)
    )
    grades = [n for n in names if n == config.relevance or n.casefold() in RELEVANCES][:1]
    table, lists = list_rows(path, [], [*documents, *grades], ids=[query])
    require_equal_lengths(lists, where)
    query_ids = ids_of(table, query, where)
    queries = [key for key, row in zip(query_ids, lists[documents[0]], strict=True) for _ in row]
    judged = sum_of(lists[documents[0]])
    columns = (query, documents[0], "relevance")
    try:
        grade = pa.array(sum_of(lists[grades[0]]) if grades else [1] * len(judged))
        return pa.table(dict(zip(columns, [queries, judged, grade], strict=True))), columns
    except pa.ArrowException as error:
        raise InputError(
            f"the lists of {where} hold values of different types: {error}; give those of a column one type"
        ) from error


def read_rows(
    path: Path,
    texts: Sequence[str],
    ids: Sequence[str],
    labels: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
) -> pa.Table:
    """Some columns of a file.

    Raises:
        InputError: the file cannot be read, has no such column, or has no rows.
    """
    table = read_columns(path, texts, labels, ids=ids, optional=optional)
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows; give at least one, or leave it out")
    return table


def _id_column(
    field: str, given: str, usual: Sequence[str], names: Sequence[str], where: str
) -> str:
    """The id column in the file of the texts themselves, where it is often called just `id`."""
    if given in names:
        return given
    return find_column(field, usual[0], (*usual, *OWN_ID), names, where)


def _judged(config: SearchColumns, names: Sequence[str], where: str) -> tuple[str, str, str]:
    assert config.relevance is not None, "read without judgements"
    relevance = find_column("relevance", config.relevance, RELEVANCE, names, where)
    return *_judged_ids(config, names, where), relevance


def _judged_ids(config: SearchColumns, names: Sequence[str], where: str) -> tuple[str, str]:
    columns: list[str] = []
    for field, own, given, usual in (
        ("query_id", config.qrels_query_id, config.query_id, QUERY_ID),
        ("document_id", config.qrels_document_id, config.document_id, DOCUMENT_ID),
    ):
        if own is not None:
            columns.append(find_column(f"qrels_{field}", own, [own], names, where))
        elif given in names:
            columns.append(given)
        else:
            columns.append(find_column(f"qrels_{field}", usual[0], usual, names, where))
    return columns[0], columns[1]


@dataclass(frozen=True)
class Judgeable:
    """The queries, or documents, that judgements may refer to."""

    ids: Collection[str]
    where: str
    """What messages call their file."""


@dataclass(frozen=True)
class Judgement:
    """One row of a file of judgements."""

    row: int
    """From 1."""
    query: str
    document: str
    grade: int
    """Relevant if above 0."""


def judgements_of(
    table: pa.Table,
    columns: tuple[str, str, str],
    where: str,
    queries: Judgeable,
    documents: Judgeable,
) -> list[Judgement]:
    """The judgements of a table, in its order.

    Args:
        table: one row per judgement.
        columns: names of the columns with query id, document id and grade.
        where: what messages call the table's file.
        queries: that may be judged.
        documents: that may be judged.

    Raises:
        InputError: an id is unknown, a pair is judged twice, a grade is not a whole number or is too large,
            or none is above 0.
    """
    query_ids, document_ids = (ids_of(table, name, where) for name in columns[:2])
    grades = numbers_of(table, columns[2], where)
    seen, judged = set[tuple[str, str]](), list[Judgement]()
    rows = zip(query_ids, document_ids, grades, strict=True)
    for row, (query, document, grade) in enumerate(rows, start=1):
        for name, key, allowed in (("query", query, queries), ("document", document, documents)):
            if key not in allowed.ids:
                raise InputError(
                    f"row {row} of {where} judges the {name} {quoted(key)}, which is not in {allowed.where}; "
                    f"remove the row or add the {name}"
                )
        if (query, document) in seen:
            raise InputError(
                f"row {row} of {where} judges document {quoted(document)} for query {quoted(query)} a "
                f"second time; keep one of the rows"
            )
        if grade != int(grade):
            raise InputError(
                f"row {row} of {where} has the relevance {grade:g}; judgements are whole numbers"
            )
        require_usual_grade(grade, row, where)
        seen.add((query, document))
        judged.append(Judgement(row, query, document, int(grade)))
    if not any(judgement.grade > 0 for judgement in judged):
        raise InputError(
            f"none of the {len(grades)} judgements in {where} is above 0, so no query has an answer to find"
        )
    return judged


def require_usual_grade(grade: float, row: int, where: str) -> None:
    """Check that a grade is none that scoring cannot hold, which takes memory by the largest one.

    Raises:
        InputError: it is.
    """
    if abs(grade) > MOST_OF_A_GRADE:
        raise InputError(
            f"row {row} of {where} has the relevance {grade:g}, whose absolute value is above "
            f"{MOST_OF_A_GRADE:,}; grades are small whole numbers such as 0, 1 and 2, so correct it, or name "
            "the column that holds them"
        )


def queries_of(ids: Sequence[str], texts: Sequence[str], where: str) -> dict[str, str]:
    """The text of every query by its id, from rows per candidate.

    Raises:
        InputError: an id has two texts.
    """
    first: dict[str, int] = {}
    for row, (key, text) in enumerate(zip(ids, texts, strict=True)):
        before = first.setdefault(key, row)
        if texts[before] != text:
            raise InputError(
                f"row {row + 1} of {where} has the query {quoted(text)} under the id {quoted(key)}, which "
                f"row {before + 1} gives to {quoted(texts[before])}; give every query an id of its own"
            )
    return {key: texts[row] for key, row in first.items()}


def document_text(title: str, text: str) -> str:
    """Title and text joined by a space, as in mteb."""
    return f"{title} {text}".strip() if title else text.strip()
