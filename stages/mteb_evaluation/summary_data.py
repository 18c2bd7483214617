"""Local data of summarization tasks: what people wrote, what machines wrote, what people thought of it."""

from stages.corpus.names import DOCUMENT_ID, OWN_ID, RATING, REFERENCES, SUMMARY
from stages.corpus.values import ids_of, numbers_of, texts_of, unique_ids_of
from stages.mteb_evaluation.columns import open_file, text_lists_of
from stages.mteb_evaluation.local_data import Columns, LocalData
from stages.mteb_evaluation.tasks import SummarizationTask
from storage.errors import InputError
from storage.quoting import quoted

_IDS = (*DOCUMENT_ID, *OWN_ID)


def read_summarization(config: SummarizationTask) -> LocalData:
    """Documents whose summaries are not all of one grade."""
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
    places = {key: i for i, key in enumerate(ids)}
    machine: list[list[str]] = [[] for _ in ids]
    relevance: list[list[float]] = [[] for _ in ids]
    for row, (key, summary, grade) in enumerate(zip(of, summaries, grades, strict=True), start=1):
        if key not in places:
            raise InputError(
                f"row {row} of {summaries_where} is a summary of {quoted(key)}, which is not in {where}; "
                f"remove the row or add the document"
            )
        machine[places[key]].append(summary)
        relevance[places[key]].append(grade)
    kept = [i for i, found in enumerate(relevance) if len(set(found)) > 1]
    if not kept:
        raise InputError(
            f"no document of {where} has summaries of different {quoted(rating)} in "
            f"{summaries_where}, so nothing correlates with them"
        )
    columns: Columns = {
        "text": [ids[i] for i in kept],
        "human_summaries": [human[i] for i in kept],
        "machine_summaries": [machine[i] for i in kept],
        "relevance": [relevance[i] for i in kept],
    }
    return LocalData({"test": columns})
