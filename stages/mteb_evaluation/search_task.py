"""What local tasks of queries and documents share: roles, scores, and the texts that mteb asks for."""

from collections.abc import Mapping
from typing import Any, ClassVar

from permafrost.stages.corpus.search_files import document_text
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask, Role

SEARCH_ROLES: tuple[Role, ...] = ("query", "document")

_CUTS = (1, 3, 5, 10, 20, 100, 1000)


def scored(judged: Mapping[str, int]) -> dict[str, int]:
    """The relevant ones of a query's judged documents with their grades; all of them with 0 if none is, as
    mteb scores a query only if it is judged."""
    return {document: grade for document, grade in judged.items() if grade > 0} or dict(judged)


class SearchTask(LocalTask):
    """Queries, and documents that are ranked for each."""

    scores: ClassVar[tuple[str, ...]] = (
        *(
            f"{m}_at_{k}"
            for m in ("ndcg", "map", "mrr", "recall", "precision", "hit_rate")
            for k in _CUTS
        ),
        "accuracy",
        *(
            f"nauc_{m}_at_{k}_{what}"
            for m in ("ndcg", "map", "mrr", "recall", "precision")
            for k in _CUTS
            for what in ("max", "std", "diff1")
        ),
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Queries and documents."""
        return SEARCH_ROLES

    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """All queries, and all documents: title and text joined by a space, as in mteb."""
        corpus = data.tables["corpus"]
        titles = corpus.get("title", [""] * len(corpus["text"]))
        documents = [document_text(*both) for both in zip(titles, corpus["text"], strict=True)]
        return {"query": data.tables["queries"]["text"], "document": documents}

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskRetrieval

        return AbsTaskRetrieval
