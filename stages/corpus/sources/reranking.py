"""Pairs of a query and an answer from labelled candidates, with the other candidates as hard negatives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from permafrost.stages.corpus.candidates import CandidateColumns, read_candidates
from permafrost.stages.corpus.columns import Unlabelled
from permafrost.stages.corpus.rows import Negatives, SplitRows
from permafrost.stages.corpus.search_files import document_text, queries_of
from permafrost.stages.corpus.source import CorpusSource, test_part
from permafrost.stages.corpus.splits import (
    DevAsGiven,
    DevOfQueries,
    TestAsGiven,
    TestOfQueries,
    check_splits,
)
from permafrost.stages.corpus.table_files import content_sha256, file_format
from permafrost.stages.corpus.values import checked_texts
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class RerankingCorpus(CandidateColumns, CorpusSource):
    """Files of queries with candidates, one per row: every candidate that answers its query makes a pair.

    A row may hold all candidates of a query instead, in lists `positive` and `negative`.

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
    """`candidates`: those with label 0 are the hard negatives of every pair of their query."""
    dev: DevOfQueries = DevAsGiven()
    """Where the development split comes from."""
    test: TestOfQueries = TestAsGiven()
    """Where the test split comes from."""

    def columns(self) -> Unlabelled:
        """Pairs without labels."""
        negative = None if self.negatives == "none" else self.document
        return Unlabelled(text="query", text_pair="answer", negative=negative)

    def held_out(self) -> tuple[DevOfQueries, TestOfQueries]:
        """As configured."""
        return self.dev, self.test

    @model_validator(mode="after")
    def _splits_go_with_dev(self) -> "RerankingCorpus":
        check_splits(self.columns(), self.dev, self.test, list(self.files))
        return self

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            **self.model_dump(mode="json"),
            "files": {
                split: {"format": file_format(Path(path)), "sha256": content_sha256(Path(path))}
                for split, path in self.files.items()
            },
        }

    def tested_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """SHA-256 of the file of test, or of train where test is taken from that."""
        return test_part({split: file["sha256"] for split, file in facts["files"].items()})

    def rows(self) -> list[SplitRows]:
        """The pairs of every split, in the order of the answers in its file.

        Raises:
            InputError: a file or column is missing, a text is missing or blank, a label is neither 0 nor 1,
                a query id has two texts, a candidate has both labels, or there is no answer.
        """
        return [self._pairs(split, Path(path)) for split, path in self.files.items()]

    def _pairs(self, split: str, path: Path) -> SplitRows:
        candidates = read_candidates(self, path)
        where, document, keys, labels = (
            candidates.where,
            candidates.document,
            candidates.keys,
            candidates.labels,
        )
        queries, documents = (
            checked_texts(candidates.texts.column(name), name, where).to_pylist()
            for name in candidates.texts.column_names
        )
        documents = [document_text("", text) for text in documents]
        others = _wrong_candidates(keys, queries, documents, labels, where)
        answers = [row for row, label in enumerate(labels) if label]
        if not answers:
            raise InputError(
                f"none of the {len(labels)} rows of {where} has the label 1, so no query has an answer"
            )
        negatives = None
        if self.negatives == "candidates":
            texts = [text for row in answers for text in others[keys[row]]]
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
    """The candidates with label 0 of every query id, each text once."""
    judged: dict[tuple[str, str], int] = {}
    for row, (key, document) in enumerate(zip(keys, documents, strict=True)):
        again = judged.setdefault((key, document), row)
        if labels[again] != labels[row]:
            raise InputError(
                f"rows {again + 1} and {row + 1} of {where} label the same document of query {quoted(key)} "
                f"{labels[again]} and {labels[row]}; keep one of them"
            )
    candidates: dict[str, list[str]] = {key: [] for key in queries_of(keys, queries, where)}
    for (key, document), row in judged.items():
        if not labels[row]:
            candidates[key].append(document)
    return candidates


def _texts(values: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])
