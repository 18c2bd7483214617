"""Local queries with their own candidates, scored as mteb's Reranking tasks are."""

from typing import ClassVar, Literal

from permafrost.stages.corpus.candidates import CandidateColumns, read_candidates
from permafrost.stages.corpus.search_files import queries_of
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.search_task import SearchTask, scored
from permafrost.storage.errors import InputError


class RerankingTask(CandidateColumns, SearchTask):
    """Queries, each with its own candidates: rows of query, document and label, or of a query with the lists
    `positive` and `negative`.

    As in mteb, a query without an answer scores 0 where rows hold a candidate each; where they hold lists,
    queries are left out that lack positive ones or negative ones.
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
        judged: dict[str, dict[str, int]] = {}
        candidates: dict[str, list[str]] = {}
        for key, label in zip(query_ids, labels, strict=True):
            document_ids = candidates.setdefault(key, [])
            document_ids.append(f"{key}/{len(document_ids)}")
            corpus["id"].append(document_ids[-1])
            judged.setdefault(key, {})[document_ids[-1]] = label
        if not any(labels):
            raise InputError(
                f"none of the {len(labels)} rows of {where} has the label 1, so no query has an answer to "
                f"rank"
            )
        kept = [key for key in texts if not rows.of_lists or {0, 1} <= {*judged[key].values()}]
        if not kept:
            raise InputError(
                f"no query of {where} has both a positive and a negative document, so none has anything to "
                "rank"
            )
        return LocalData(
            {"queries": {"id": kept, "text": [texts[key] for key in kept]}, "corpus": corpus},
            relevant={key: scored(judged[key]) for key in kept},
            candidates={key: candidates[key] for key in kept},
        )
