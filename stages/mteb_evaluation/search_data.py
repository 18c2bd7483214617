"""Local data of retrieval and reranking tasks: queries, documents, and relevance judgements."""

from permafrost.stages.corpus.candidates import read_candidates
from permafrost.stages.corpus.search_files import (
    Judgeable,
    judgements_of,
    queries_of,
    read_documents,
    read_judgements,
    read_queries,
)
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.tasks import RerankingTask, RetrievalTask
from permafrost.storage.errors import InputError


def read_retrieval(config: RetrievalTask) -> LocalData:
    """All documents, and the queries with at least one relevant document."""
    path = config.file("qrels")
    documents, where = read_documents(config)
    titles, contents = (list(side) for side in zip(*documents.values(), strict=True))
    corpus: Columns = {"id": list(documents), "text": contents}
    if any(titles):
        corpus["title"] = titles
    queries_by_id, queries_where = read_queries(config)
    table, names = read_judgements(config, path)
    judgeable = Judgeable(queries_by_id, queries_where), Judgeable(documents, where)
    relevant: dict[str, dict[str, int]] = {}
    for judgement in judgements_of(table, names, str(path), *judgeable):
        if judgement.grade > 0:
            relevant.setdefault(judgement.query, {})[judgement.document] = judgement.grade
    kept = [query for query in queries_by_id if query in relevant]
    queries = {"id": kept, "text": [queries_by_id[query] for query in kept]}
    return LocalData(
        {"queries": queries, "corpus": corpus}, {q: relevant[q] for q in queries["id"]}
    )


def read_reranking(config: RerankingTask) -> LocalData:
    """Candidates as separate documents for each query, even if queries share a text."""
    rows = read_candidates(config, config.file("candidates"))
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
            f"none of the {len(labels)} rows of {where} has the label 1, so no query has an answer to rank"
        )
    scored = [key for key in texts if key in relevant]
    return LocalData(
        {"queries": {"id": scored, "text": [texts[key] for key in scored]}, "corpus": corpus},
        relevant={key: relevant[key] for key in scored},
        candidates={key: candidates[key] for key in scored},
    )
