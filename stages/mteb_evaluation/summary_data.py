"""Local data of summarization tasks: human summaries, machine summaries, and grades of the latter."""

from dataclasses import dataclass
from typing import Any

from permafrost.stages.corpus.names import (
    DOCUMENT_ID,
    OWN_ID,
    RATING,
    REFERENCES,
    SUMMARIES,
    SUMMARY,
)
from permafrost.stages.corpus.values import (
    ids_of,
    list_rows,
    numbers_of,
    require_equal_lengths,
    texts_of,
    unique_ids_of,
)
from permafrost.stages.mteb_evaluation.columns import open_file, text_lists_of
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.tasks import SummarizationTask
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_IDS = (*DOCUMENT_ID, *OWN_ID)


def read_summarization(config: SummarizationTask) -> LocalData:
    """Documents whose summaries do not all have the same grade."""
    summaries = _read_nested(config) if config.is_nested else _read_rows(config)
    kept = [i for i, grades in enumerate(summaries.grades) if len(set(grades)) > 1]
    if not kept:
        raise InputError(
            f"no document of {summaries.where} has summaries of different {quoted(summaries.rating)}, so "
            "there is nothing to correlate"
        )
    columns: Columns = {
        "text": [summaries.ids[i] for i in kept],
        "human_summaries": [summaries.human[i] for i in kept],
        "machine_summaries": [summaries.machine[i] for i in kept],
        "relevance": [summaries.grades[i] for i in kept],
    }
    return LocalData({"test": columns})


@dataclass(frozen=True)
class _Summaries:
    """Summaries and grades, one entry per document."""

    where: str
    rating: str
    """Name of the grade column."""
    ids: list[str]
    human: list[list[str]]
    machine: list[list[str]]
    grades: list[list[float]]


def _read_nested(config: SummarizationTask) -> _Summaries:
    """One row per document, with lists of its human and machine summaries and of the latter's grades."""
    file = open_file(config, "documents")
    where = file.where
    references = file.column("references", config.references, REFERENCES)
    summary = file.column("summary", config.summary, ("summary", *SUMMARIES))
    rating = file.column("relevance", config.relevance, RATING)
    keys = [n for n in file.names if n == config.document_id or n.casefold() in _IDS][:1]
    table, lists = list_rows(file.path, [references, summary], [rating], ids=keys)
    if table.num_rows == 0:
        raise InputError(f"{where} has no rows, so the task is empty; give it data or leave it out")
    require_equal_lengths({name: lists[name] for name in (summary, rating)}, where)
    for name, is_right, wanted in (
        (references, _is_text, "texts"),
        (summary, _is_text, "texts"),
        (rating, _is_number, "finite numbers"),
    ):
        for row, values in enumerate(lists[name], start=1):
            if not values or not all(map(is_right, values)):
                raise InputError(
                    f"row {row} of {where} has {quoted(values)} in column {quoted(name)}, expected a list of "
                    f"{wanted}"
                )
    n = table.num_rows
    ids = unique_ids_of(table, keys[0], where) if keys else [str(i) for i in range(n)]
    grades = [list(map(float, values)) for values in lists[rating]]
    return _Summaries(where, rating, ids, lists[references], lists[summary], grades)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < float("inf")


def _read_rows(config: SummarizationTask) -> _Summaries:
    """A file of documents with their human summaries, and a file of machine summaries."""
    file = open_file(config, "documents")
    where = file.where
    key = file.column("document_id", config.document_id, _IDS)
    references = file.column("references", config.references, REFERENCES)
    documents = file.read(ids=[key], lists=[references])
    ids, human = unique_ids_of(documents, key, where), text_lists_of(documents, references, where)
    file = open_file(config, "summaries")
    summaries_where = file.where
    key = file.column("document_id", config.document_id, _IDS)
    summary = file.column("summary", config.summary, SUMMARY)
    rating = file.column("relevance", config.relevance, RATING)
    table = file.read([summary], ids=[key], labels=[rating])
    of = ids_of(table, key, summaries_where)
    summaries = texts_of(table, summary, summaries_where)
    grades = numbers_of(table, rating, summaries_where)
    index_of = {key: i for i, key in enumerate(ids)}
    machine: list[list[str]] = [[] for _ in ids]
    relevance: list[list[float]] = [[] for _ in ids]
    for row, (key, summary, grade) in enumerate(zip(of, summaries, grades, strict=True), start=1):
        if key not in index_of:
            raise InputError(
                f"row {row} of {summaries_where} is a summary of {quoted(key)}, which is not in {where}; "
                f"remove the row or add the document"
            )
        machine[index_of[key]].append(summary)
        relevance[index_of[key]].append(grade)
    return _Summaries(f"{where} and {summaries_where}", rating, ids, human, machine, relevance)
