"""Pairs of a query and a relevant document, from queries, documents and judgements as BEIR has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

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
from stages.corpus.files import file_format, file_sha256, read_columns
from stages.corpus.judgements import Judgeable, Judgement, document_text, judgements_of
from stages.corpus.rows import SplitRows
from stages.corpus.values import texts_of, unique_ids_of
from storage.errors import InputError
from storage.quoting import quoted


class RetrievalCorpus(BaseModel):
    """A folder of parquet files with documents, queries and judgements: one pair per relevant document.

    ```yaml
    kind: retrieval
    path: data/scifact
    qrels: {train: qrels_train, test: qrels_test}
    dev: {kind: from_train_queries, fraction: 0.1}
    ```

    Files and columns have the names that a local evaluation task of type `retrieval` reads, and the text of
    a document is made in the same way, so that both find it in one store. Documents that no judgement calls
    relevant are left out. Splits are of queries: a document may be in several.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["retrieval"] = "retrieval"
    path: str
    """Folder of the files."""
    corpus: str = "corpus"
    """File, without extension, of the documents."""
    queries: str = "queries"
    """File, without extension, of the queries of all splits."""
    qrels: dict[str, str] = Field(min_length=1)
    """Split to the file, without extension, of its judgements."""
    query_id: str = "query_id"
    document_id: str = "doc_id"
    query: str = "text"
    document: str = "text"
    title: str | None = "title"
    """Column whose text stands before the document's, with a space between; null for none."""
    relevance: str = "score"
    """Column of the judgements; whole numbers, 0 and below are not relevant and give no pair."""
    dev: Annotated[DevAsGiven | DevFromTrainQueries, Field(discriminator="kind")] = DevAsGiven()
    """Where the development split comes from."""
    test: Annotated[TestAsGiven | TestFromTrainQueries, Field(discriminator="kind")] = TestAsGiven()
    """Where the test split comes from."""

    @property
    def task(self) -> Unlabelled:
        """Pairs without labels."""
        return Unlabelled(text="query", text_pair="document")

    @model_validator(mode="after")
    def _splits_go_with_dev(self) -> "RetrievalCorpus":
        check_splits(self.task, self.dev, self.test, list(self.qrels))
        return self

    def file(self, stem: str) -> Path:
        """A file of the folder."""
        return Path(self.path) / f"{stem}.parquet"


def retrieval_facts(config: RetrievalCorpus) -> dict[str, Any]:
    """The bytes of the files instead of their names, and everything that decides how they are read."""
    return {
        **config.model_dump(mode="json", exclude={"path"}),
        "corpus": _sha256(config.file(config.corpus)),
        "queries": _sha256(config.file(config.queries)),
        "qrels": {split: _sha256(config.file(stem)) for split, stem in config.qrels.items()},
    }


def _sha256(path: Path) -> str:
    file_format(path)  # says what is wrong with a file that is not there
    return file_sha256(path)


def retrieval_rows(config: RetrievalCorpus) -> list[SplitRows]:
    """The pairs of every split, in the order of its judgements.

    Raises:
        InputError: a file or column that is not there, no rows, an id that occurs twice, a judgement of an
            unknown query or document, no relevant document, or a blank query or document that is judged.
    """
    documents, documents_where = _texts_by_id(config, config.corpus, "document")
    queries, queries_where = _texts_by_id(config, config.queries, "query")
    known = Judgeable(queries, queries_where), Judgeable(documents, documents_where)
    names = (config.query_id, config.document_id, config.relevance)
    found: list[SplitRows] = []
    for split, stem in config.qrels.items():
        where = str(config.file(stem))
        table = _read(config.file(stem), names)
        relevant = [j for j in judgements_of(table, names, where, *known) if j.grade > 0]
        sides = (
            [_filled(queries, "query", j.query, j, where, queries_where) for j in relevant],
            [
                _filled(documents, "document", j.document, j, where, documents_where)
                for j in relevant
            ],
        )
        text, text_pair = (pa.chunked_array([side], pa.large_string()) for side in sides)
        found.append(
            SplitRows(
                split=split,
                where=f"the pairs of {where}",
                text=text,
                text_pair=text_pair,
                label=None,
                class_names=None,
            )
        )
    return found


def _read(path: Path, columns: tuple[str, ...]) -> pa.Table:
    table = read_columns(path, list(dict.fromkeys(columns)), [])
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows; give at least one, or leave its split out")
    return table


def _texts_by_id(
    config: RetrievalCorpus, stem: str, what: Literal["query", "document"]
) -> tuple[dict[str, str], str]:
    """Id to text of all queries, or of all documents, which may be blank; and the file they are from."""
    path, where = config.file(stem), str(config.file(stem))
    if what == "query":
        table = _read(path, (config.query_id, config.query))
        texts, key = texts_of(table, config.query, where), config.query_id
    else:
        titled = () if config.title is None else (config.title,)
        table = _read(path, (config.document_id, config.document, *titled))
        texts, key = texts_of(table, config.document, where), config.document_id
        titles = [texts_of(table, name, where) for name in titled] or [[""] * len(texts)]
        texts = [document_text(*both) for both in zip(titles[0], texts, strict=True)]
    return dict(zip(unique_ids_of(table, key, where), texts, strict=True)), where


def _filled(
    texts: Mapping[str, str], what: str, key: str, judgement: Judgement, where: str, source: str
) -> str:
    """The text with this id; not blank."""
    if not (text := texts[key]).strip():
        raise InputError(
            f"row {judgement.row} of {where} calls document {quoted(judgement.document)} relevant for query "
            f"{quoted(judgement.query)}, but the {what} {quoted(key)} in {source} is blank; remove the row "
            f"or fill the {what}"
        )
    return text
