"""Local queries with their own candidates, scored as mteb's Reranking tasks are."""

from typing import ClassVar, Literal

from permafrost.stages.corpus.candidates import CandidateColumns, read_candidates
from permafrost.stages.corpus.search_files import queries_of
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.search_task import SearchTask
from permafrost.storage.errors import InputError


class RerankingTask(CandidateColumns, SearchTask):
    """Queries, each with its own candidates: rows of query, document and label, or of a query with the lists
    `positive` and `negative`.

    Queries without an answer are left out.
    """

    mteb_category: ClassVar[str] = "Reranking"
    default_score: ClassVar[str] = "map_at_1000"

    type: Literal["reranking"] = "reranking"
    split: str = "test"
    """File, without extension."""

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"candidates": self.split}

    def read(self) -> LocalData:
        """Candidates as separate documents for each query, even if queries share a text.

        Raises as `LocalTask.read`.
        """
        rows = read_candidates(self, self.file("candidates"))
        where, query_ids, labels = rows.where, rows.keys, rows.labels
        queries, documents = rows.queries_and_documents()
        texts = queries_of(query_ids, queries, where)
        corpus: Columns = {"id": [], "text": documents}
        relevant: dict[str, dict[str, int]] = {}
        candidates: dict[str, list[str]] = {}
        for key, label in zip(query_ids, labels, strict=True):
            document_ids = candidates.setdefault(key, [])
            document_ids.append(f"{key}/{len(document_ids)}")
            corpus["id"].append(document_ids[-1])
            if label:
                relevant.setdefault(key, {})[document_ids[-1]] = 1
        if not relevant:
            raise InputError(
                f"none of the {len(labels)} rows of {where} has the label 1, so no query has an answer to "
                f"rank"
            )
        scored = [key for key in texts if key in relevant]
        return LocalData(
            {"queries": {"id": scored, "text": [texts[key] for key in scored]}, "corpus": corpus},
            relevant={key: relevant[key] for key in scored},
            candidates={key: candidates[key] for key in scored},
        )
