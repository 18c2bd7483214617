"""Which document answers which query, and what the texts of queries and documents are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from permafrost.stages.corpus.values import ids_of, numbers_of
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class Judgeable:
    """Queries, or documents, that judgements may name."""

    ids: Collection[str]
    where: str
    """Names their file in messages."""


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
        columns: those with the id of the query, the id of the document, and the grade.
        where: names the table's file in messages.
        queries: which may be judged.
        documents: which may be judged.

    Raises:
        InputError: an id that is not known, a pair that is judged twice, a grade that is no whole number,
            or none above 0.
    """
    asked, found = (ids_of(table, name, where) for name in columns[:2])
    grades = numbers_of(table, columns[2], where)
    seen, judged = set[tuple[str, str]](), list[Judgement]()
    for row, (query, document, grade) in enumerate(zip(asked, found, grades, strict=True), start=1):
        for name, key, known in (("query", query, queries), ("document", document, documents)):
            if key not in known.ids:
                raise InputError(
                    f"row {row} of {where} judges the {name} {quoted(key)}, which is not in {known.where}; "
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
        seen.add((query, document))
        judged.append(Judgement(row, query, document, int(grade)))
    if not any(judgement.grade > 0 for judgement in judged):
        raise InputError(
            f"none of the {len(grades)} judgements in {where} is above 0, so no query has an answer to find"
        )
    return judged


def queries_of(ids: Sequence[str], texts: Sequence[str], where: str) -> dict[str, str]:
    """Id to text of queries with a row per candidate.

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
    """Title and text with a space between, as mteb joins them."""
    return f"{title} {text}".strip() if title else text.strip()
