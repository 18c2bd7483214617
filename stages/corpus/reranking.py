"""Pairs of a query and an answer from labelled candidates, the other candidates as hard negatives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.corpus.columns import (
    DevAsGiven,
    DevFromTrainQueries,
    TestAsGiven,
    TestFromTrainQueries,
    Unlabelled,
    check_splits,
)
from stages.corpus.files import column_names, file_format, file_sha256, read_columns
from stages.corpus.judgements import document_text, queries_of
from stages.corpus.names import ANSWER, ASKED, BINARY, QUERY_ID, find_column
from stages.corpus.negatives import Negatives
from stages.corpus.rows import SplitRows
from stages.corpus.text_column import checked_texts
from stages.corpus.values import ids_of, zeros_and_ones
from storage.errors import InputError
from storage.quoting import quoted


class CandidateColumns(BaseModel):
    """Names of columns; those that are not given may have other usual names, too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_id: str = "query_id"
    """Equal queries are one where a file has no such column."""
    query: str = "query"
    document: str = "document"
    label: str = "label"
    """1 for a document that answers, else 0."""


class RerankingCorpus(CandidateColumns):
    """Files of queries with candidates, one row each: a pair for every candidate that answers its query.

    ```yaml
    kind: reranking
    files: {train: wikiqa/train.parquet, dev: wikiqa/dev.parquet, test: wikiqa/test.parquet}
    query_id: qid
    query: question
    document: sentence
    negatives: candidates
    ```

    Queries without an answer are left out.
    """

    kind: Literal["reranking"] = "reranking"
    files: dict[str, str] = Field(min_length=1)
    """Split to path; the format follows from the extension: .parquet, .jsonl, .csv or .tsv."""
    negatives: Literal["none", "candidates"] = "none"
    """`candidates`: those with the label 0 are the hard negatives of every pair of their query."""
    dev: Annotated[DevAsGiven | DevFromTrainQueries, Field(discriminator="kind")] = DevAsGiven()
    """Where the development split comes from."""
    test: Annotated[TestAsGiven | TestFromTrainQueries, Field(discriminator="kind")] = TestAsGiven()
    """Where the test split comes from."""

    @property
    def task(self) -> Unlabelled:
        """Pairs without labels."""
        negative = None if self.negatives == "none" else self.document
        return Unlabelled(text="query", text_pair="answer", negative=negative)

    @model_validator(mode="after")
    def _splits_go_with_dev(self) -> "RerankingCorpus":
        check_splits(self.task, self.dev, self.test, list(self.files))
        return self


def reranking_facts(config: RerankingCorpus) -> dict[str, Any]:
    """The bytes of the files instead of their names, and everything that decides how they are read."""
    return {
        **config.model_dump(mode="json"),
        "files": {
            split: {"format": file_format(Path(path)), "sha256": file_sha256(Path(path))}
            for split, path in config.files.items()
        },
    }


def reranking_rows(config: RerankingCorpus) -> list[SplitRows]:
    """The pairs of every split, in the order of the answers in its file.

    Raises:
        InputError: a file or column that is not there, a text that is missing or blank, a label other than
            0 and 1, a query id with two texts, a candidate that both answers and does not, or no answer.
    """
    return [_pairs(config, split, Path(path)) for split, path in config.files.items()]


def reranking_columns(
    config: CandidateColumns, available: Sequence[str], where: str
) -> tuple[str, str, str, str]:
    """Columns of the query's id, the query, the document and the label.

    A query without an id column is its own: `id` alone may number the rows, and is not taken for one.

    Raises:
        InputError: one is not there, or several could be meant.
    """
    query = find_column("query", config.query, ASKED, available, where)
    has_ids = config.query_id != QUERY_ID[0] or any(n.casefold() in QUERY_ID for n in available)
    key = find_column("query_id", config.query_id, QUERY_ID, available, where) if has_ids else query
    document = find_column("document", config.document, ANSWER, available, where)
    return key, query, document, find_column("label", config.label, BINARY, available, where)


def _pairs(config: RerankingCorpus, split: str, path: Path) -> SplitRows:
    where = str(path)
    key, query, document, label = reranking_columns(config, column_names(path), where)
    table = read_columns(path, [query, document], [label], ids=[key])
    queries, documents = (
        checked_texts(table.column(name), name, where).to_pylist() for name in (query, document)
    )
    documents = [document_text("", document) for document in documents]
    keys = ids_of(table, key, where)
    labels = zeros_and_ones(table, label, where)
    others = _wrong_candidates(keys, queries, documents, labels, where)
    answers = [row for row, label in enumerate(labels) if label]
    if not answers:
        raise InputError(
            f"none of the {len(labels)} rows of {where} has the label 1, so no query has an answer"
        )
    negatives = None
    if config.negatives == "candidates":
        texts = [document for row in answers for document in others[keys[row]]]
        counts = [len(others[keys[row]]) for row in answers]
        rows = np.repeat(np.arange(len(answers)), counts)
        negatives = Negatives(document, _texts(texts), rows)
    return SplitRows(
        split=split,
        where=f"the answers of {where}",
        text=_texts([queries[row] for row in answers]),
        text_pair=_texts([documents[row] for row in answers]),
        label=None,
        class_names=None,
        negatives=negatives,
    )


def _wrong_candidates(
    keys: Sequence[str],
    queries: Sequence[str],
    documents: Sequence[str],
    labels: Sequence[int],
    where: str,
) -> dict[str, list[str]]:
    """Query id to its candidates with the label 0, each text once."""
    judged: dict[tuple[str, str], int] = {}
    for row, (key, document) in enumerate(zip(keys, documents, strict=True)):
        again = judged.setdefault((key, document), row)
        if labels[again] != labels[row]:
            raise InputError(
                f"rows {again + 1} and {row + 1} of {where} label the same document of query {quoted(key)} "
                f"{labels[again]} and {labels[row]}; keep one of them"
            )
    found: dict[str, list[str]] = {key: [] for key in queries_of(keys, queries, where)}
    for (key, document), row in judged.items():
        if not labels[row]:
            found[key].append(document)
    return found


def _texts(values: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])
