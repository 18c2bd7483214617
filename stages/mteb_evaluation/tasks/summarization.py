"""Local summaries with grades, scored as mteb's Summarization tasks are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from permafrost.stages.corpus.data_files import find_file, look_for
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
from permafrost.stages.mteb_evaluation.task import LocalTask, Role
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_IDS = (*DOCUMENT_ID, *OWN_ID)


class SummarizationTask(LocalTask):
    """Machine summaries compared with human ones: correlation with human grades.

    A row of `documents` may hold lists of all machine summaries and their grades, as in mteb's SummEval;
    there is no file of summaries then, and the file of documents may be called `test`.
    """

    mteb_category: ClassVar[str] = "Summarization"
    default_score: ClassVar[str] = "cosine_spearman"
    scored_files: ClassVar[tuple[str, ...]] = ("summaries",)
    scores: ClassVar[tuple[str, ...]] = (
        *("pearson", "spearman"),
        *(f"{s}_{c}" for s in ("cosine", "dot") for c in ("pearson", "spearman")),
    )

    type: Literal["summarization"] = "summarization"
    documents: str = "docs"
    """File, without extension, of the documents with their human summaries."""
    summaries: str = "summaries"
    """File, without extension, of the machine summaries."""
    document_id: str = "doc_id"
    """Column with the document's id, in both files."""
    references: str = "references"
    """Column with a list of human summaries."""
    summary: str = "summary"
    """Column with the machine summary."""
    relevance: str = "relevance"
    """Column with the grade of a machine summary."""

    @property
    def stems(self) -> dict[str, str]:
        """Documents and machine summaries."""
        return {"documents": self.documents, "summaries": self.summaries}

    @property
    def is_nested(self) -> bool:
        """Whether the machine summaries are in the file of documents, as there is no other."""
        is_named = self.summaries != type(self).model_fields["summaries"].default
        return not is_named and look_for(Path(self.path), [self.summaries], "summaries") is None

    def file(self, holds: str) -> Path:
        """The file that holds this; raises like that of other tasks."""
        if not self.is_nested:
            return super().file(holds)
        is_named = self.documents != type(self).model_fields["documents"].default
        names = [self.documents] if is_named else [self.documents, "test"]
        return find_file(Path(self.path), names, "documents")

    def read(self) -> LocalData:
        """Documents whose summaries do not all have the same grade; raises as `LocalTask.read`."""
        summaries = _read_nested(self) if self.is_nested else _read_rows(self)
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

    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """All summaries."""
        test = data.tables["test"]
        both = (*test["human_summaries"], *test["machine_summaries"])
        return {"text": [summary for summaries in both for summary in summaries]}

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskSummarization

        return AbsTaskSummarization

    def settings(self) -> Mapping[str, Any]:
        """Grades are not rescaled, as no correlation depends on their scale."""
        return {"min_score": 0, "max_score": 1}


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
