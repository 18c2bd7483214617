"""Local queries, documents and relevance judgements, scored as mteb's Retrieval tasks are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from permafrost.stages.corpus.search_files import (
    Judgeable,
    SearchColumns,
    judgements_of,
    qrels_file,
    read_documents,
    read_judgements,
    read_queries,
)
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.search_task import SearchTask, scored


class RetrievalTask(SearchColumns, SearchTask):
    """Queries, a corpus, and relevance judgements."""

    mteb_category: ClassVar[str] = "Retrieval"
    default_score: ClassVar[str] = "ndcg_at_10"
    scored_files: ClassVar[tuple[str, ...]] = ("qrels",)

    type: Literal["retrieval"] = "retrieval"
    qrels: str = "qrels_test"
    """File of the judgements, e.g. `qrels/test`. As in mteb, queries that it does not name are left out, and
    those whose judged documents are all irrelevant score 0."""
    identical_ids: Literal["keep", "ignore"] = "keep"
    """`ignore`: a document is not a result for the query with the same id, as in mteb's ArguAna."""

    @property
    def stems(self) -> dict[str, str]:
        """Corpus, queries and judgements."""
        return {"corpus": self.corpus, "queries": self.queries, "qrels": self.qrels}

    def file(self, holds: str) -> Path:
        """The file that holds this; raises like that of other tasks."""
        return qrels_file(self.path, self.qrels) if holds == "qrels" else super().file(holds)

    def read(self) -> LocalData:
        """All documents, and the queries with at least one judgement; raises as `LocalTask.read`."""
        path = self.file("qrels")
        documents, where = read_documents(self)
        titles, contents = (list(side) for side in zip(*documents.values(), strict=True))
        corpus: Columns = {"id": list(documents), "text": contents}
        if any(titles):
            corpus["title"] = titles
        queries_by_id, queries_where = read_queries(self)
        table, names = read_judgements(self, path)
        judgeable = Judgeable(queries_by_id, queries_where), Judgeable(documents, where)
        relevant: dict[str, dict[str, int]] = {}
        for judgement in judgements_of(table, names, str(path), *judgeable):
            grade = max(judgement.grade, 0)
            relevant.setdefault(judgement.query, {})[judgement.document] = grade
        kept = [query for query in queries_by_id if query in relevant]
        queries = {"id": kept, "text": [queries_by_id[query] for query in kept]}
        return LocalData(
            {"queries": queries, "corpus": corpus}, {q: scored(relevant[q]) for q in kept}
        )

    def settings(self) -> Mapping[str, Any]:
        """Whether the document with a query's id is a result for it."""
        return {"ignore_identical_ids": self.identical_ids == "ignore"}
