"""Local data of summarization tasks: what people wrote, what machines wrote, what people thought of it."""

from stages.corpus.values import ids_of, numbers_of, texts_of, unique_ids_of
from stages.mteb_evaluation.columns import read_table, text_lists_of
from stages.mteb_evaluation.local_data import Columns, LocalData
from stages.mteb_evaluation.tasks import SummarizationTask
from storage.errors import InputError
from storage.quoting import quoted


def read_summarization(config: SummarizationTask) -> LocalData:
    """Documents whose summaries are not all of one grade."""
    documents, where = read_table(config, "documents", [config.document_id, config.references])
    ids = unique_ids_of(documents, config.document_id, where)
    human = text_lists_of(documents, config.references, where)
    names = [config.document_id, config.summary, config.relevance]
    table, summaries_where = read_table(config, "summaries", names)
    of = ids_of(table, config.document_id, summaries_where)
    summaries = texts_of(table, config.summary, summaries_where)
    grades = numbers_of(table, config.relevance, summaries_where)
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
            f"no document of {where} has summaries of different {quoted(config.relevance)} in "
            f"{summaries_where}, so nothing correlates with them"
        )
    columns: Columns = {
        "text": [ids[i] for i in kept],
        "human_summaries": [human[i] for i in kept],
        "machine_summaries": [machine[i] for i in kept],
        "relevance": [relevance[i] for i in kept],
    }
    return LocalData({"test": columns})
