"""Local data of tasks that search: queries, documents, and which of them answer which."""

from stages.corpus.judgements import Judgeable, judgements_of, queries_of
from stages.corpus.values import ids_of, texts_of, unique_ids_of, zeros_and_ones
from stages.mteb_evaluation.columns import read_table
from stages.mteb_evaluation.local_data import Columns, LocalData
from stages.mteb_evaluation.tasks import RerankingTask, RetrievalTask
from storage.errors import InputError
from storage.quoting import quoted


def read_retrieval(config: RetrievalTask) -> LocalData:
    """All documents, and the queries that have a relevant one."""
    qrels = config.file("qrels")
    if not qrels.exists():
        raise InputError(
            f"a retrieval task needs judgements of which document answers which query, and there is no file "
            f"{qrels}; name it with 'qrels' ({quoted(config.qrels)} now)"
        )
    columns = [config.document_id, config.document, *([config.title] if config.title else [])]
    documents, where = read_table(config, "corpus", columns)
    corpus: Columns = {
        "id": unique_ids_of(documents, config.document_id, where),
        "text": texts_of(documents, config.document, where),
    }
    if config.title:
        corpus["title"] = texts_of(documents, config.title, where)
    asked, queries_where = read_table(config, "queries", [config.query_id, config.query])
    ids = unique_ids_of(asked, config.query_id, queries_where)
    names = (config.query_id, config.document_id, config.relevance)
    table, qrels_where = read_table(config, "qrels", names)
    known = Judgeable(set(ids), queries_where), Judgeable(set(corpus["id"]), where)
    relevant: dict[str, dict[str, int]] = {}
    for judgement in judgements_of(table, names, qrels_where, *known):
        if judgement.grade > 0:
            relevant.setdefault(judgement.query, {})[judgement.document] = judgement.grade
    texts = texts_of(asked, config.query, queries_where)
    kept = [i for i, query in enumerate(ids) if query in relevant]
    queries = {"id": [ids[i] for i in kept], "text": [texts[i] for i in kept]}
    return LocalData(
        {"queries": queries, "corpus": corpus}, {q: relevant[q] for q in queries["id"]}
    )


def read_reranking(config: RerankingTask) -> LocalData:
    """Candidates as documents of their own, also where two queries share a text."""
    names = [config.query_id, config.query, config.document, config.label]
    table, where = read_table(config, "candidates", names)
    asked = ids_of(table, config.query_id, where)
    queries, documents = (texts_of(table, name, where) for name in names[1:3])
    labels = zeros_and_ones(table, config.label, where)
    texts = queries_of(asked, queries, where)
    corpus: Columns = {"id": [], "text": documents}
    relevant: dict[str, dict[str, int]] = {}
    candidates: dict[str, list[str]] = {}
    for key, label in zip(asked, labels, strict=True):
        found = candidates.setdefault(key, [])
        found.append(f"{key}/{len(found)}")
        corpus["id"].append(found[-1])
        if label:
            relevant.setdefault(key, {})[found[-1]] = 1
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
