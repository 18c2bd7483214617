"""Search with subgraphs of a knowledge graph beside queries and documents (SciFact, FiQA)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.search_files import (
    Judgeable,
    Judgement,
    SearchColumns,
    document_text,
    judgements_of,
    read_documents,
    read_judgements,
    read_queries,
)
from permafrost.stages.corpus.sources.retrieval import RetrievalCorpus
from permafrost.stages.corpus.table_files import file_identity
from permafrost.stages.graphs.assembling import Case, Item, Searched, assemble
from permafrost.stages.graphs.assembling import Judgement as JudgedItems
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.linked import LinkedSource, Wanted, require_labelled_splits
from permafrost.stages.graphs.relation_table import relation_words
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

SEARCHED = ("dev", "test")
"""Splits whose judgements are kept for nDCG@10."""


class GraphRetrieval(SearchColumns, LinkedSource):
    """A folder with documents, queries and judgements, as in BEIR; every query and document has a graph.

    ```yaml
    kind: graph_retrieval
    path: data/scifact
    n_dev_queries: 100
    knowledge: {kind: triples, path: conceptnet_cn100k/train.parquet, relations: merged}
    ```

    Files, columns and the text of a document are those of kind `retrieval`. A case is a query with a relevant
    document. Every document that is not blank is searched; judgements of dev and test are all kept.
    """

    kind: Literal["graph_retrieval"] = "graph_retrieval"
    qrels: dict[str, str] | None = Field(default=None, min_length=1)
    """The file of judgements of each split, named like `queries`; if not given, those that the folder has."""
    n_dev_queries: int | None = Field(default=None, ge=1, le=MAX_TEXTS)
    """Distinct queries of train that become dev, those with the lowest seeded hashes."""
    dev_seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice."""

    @property
    def task_kind(self) -> TaskKind:
        """Pairs without labels."""
        return "unlabelled"

    @model_validator(mode="after")
    def _dev_is_given_once(self) -> "GraphRetrieval":
        if self.qrels is not None:
            require_labelled_splits(list(self.qrels))
        if self.n_dev_queries is not None and self.qrels is not None:
            _require_train_alone(list(self.qrels))
        return self

    def judged(self) -> dict[str, Path]:
        """The file of judgements of each split; train, dev, test.

        Raises:
            InputError: a file is missing, or dev is both given and held out.
        """
        fields = {name: getattr(self, name) for name in SearchColumns.model_fields}
        files = RetrievalCorpus(**fields, qrels=self.qrels).judged()
        if self.n_dev_queries is not None:
            try:
                _require_train_alone(list(files))
            except ValueError as error:
                raise InputError(f"the folder {self.path}: {error}") from error
        return files

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            **self.model_dump(mode="json", exclude={"path"}),
            **self.linked_facts(),
            "corpus": file_identity(self.corpus_file),
            "queries": file_identity(self.queries_file),
            "qrels": {split: file_identity(path) for split, path in self.judged().items()},
        }

    def build_showing(self, progress: Progress, device: str = "auto") -> GraphCorpus:
        """Read queries, documents and judgements, and cut out a subgraph for each text.

        Raises:
            InputError: see kind `retrieval` and `LinkedSource.cut_graphs`; or a judged text is blank, or
                no query would be left in train or dev.
        """
        titled, documents_where = read_documents(self)
        documents = {key: document_text(*both) for key, both in titled.items()}
        queries, queries_where = read_queries(self)
        judgeable = Judgeable(queries, queries_where), Judgeable(documents, documents_where)
        judged: list[tuple[str, Judgement]] = []
        for split, path in self.judged().items():
            table, names = read_judgements(self, path)
            of_split = judgements_of(table, names, str(path), *judgeable)
            _require_filled(of_split, queries, documents, str(path))
            judged += [(split, one) for one in of_split]
        if self.n_dev_queries is not None:
            judged = _held_out(judged, queries, self.n_dev_queries, self.dev_seed, self.path)
        used = dict.fromkeys(one.query for _, one in judged)
        searched = [key for key, text in documents.items() if text.strip()]
        texts = [*(queries[key].strip() for key in used), *(documents[key] for key in searched)]
        graphs, knowledge, left_out = self.cut_graphs(
            [Wanted(text, text) for text in texts], progress, device
        )
        items = [Item(text, graph) for graph, text in enumerate(texts)]
        of_query = dict(zip(used, items, strict=False))
        of_document = dict(zip(searched, items[len(used) :], strict=True))
        cases = [
            Case(split, (of_query[one.query], of_document[one.document]), one.grade)
            for split, one in judged
            if one.grade > 0
        ]
        judgements = [
            JudgedItems(split, of_query[one.query], of_document[one.document], one.grade)
            for split, one in judged
            if split in SEARCHED
        ]
        return assemble(
            "unlabelled",
            cases,
            graphs,
            knowledge.relations,
            relation_words=relation_words(knowledge.relations, self.knowledge.words),
            left_out=left_out,
            searched=Searched([of_document[key] for key in searched], judgements),
        )


def _require_train_alone(splits: Sequence[str]) -> None:
    if "train" not in splits or "dev" in splits:
        raise ValueError(
            f"n_dev_queries takes dev out of train, but there are judgements of {', '.join(splits)}; leave "
            "n_dev_queries out, or name the judgements of train and test alone in 'qrels'"
        )


def _require_filled(
    judged: Sequence[Judgement],
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    where: str,
) -> None:
    for one in judged:
        for what, key, text in (
            ("query", one.query, queries[one.query]),
            ("document", one.document, documents[one.document]),
        ):
            if not text.strip():
                raise InputError(
                    f"row {one.row} of {where} judges the {what} {quoted(key)}, which is blank; remove the "
                    f"row or fill the {what}"
                )


def _held_out(
    judged: Sequence[tuple[str, Judgement]],
    queries: Mapping[str, str],
    n_dev: int,
    seed: int,
    where: str,
) -> list[tuple[str, Judgement]]:
    """The judgements with some of train moved to dev: train, dev, then test."""

    def order(key: str) -> str:
        return hashlib.sha256(f"{seed}:{text_digest(queries[key])}".encode()).hexdigest()

    # By text, so that queries with equal texts stay together.
    distinct = sorted({order(one.query) for split, one in judged if split == "train"})
    if n_dev >= len(distinct):
        raise InputError(
            f"n_dev_queries is {n_dev}, but {where} has {len(distinct)} distinct training queries, which "
            "leaves train empty; lower it"
        )
    chosen = set(distinct[:n_dev])
    moved = [
        ("dev" if split == "train" and order(one.query) in chosen else split, one)
        for split, one in judged
    ]
    return sorted(moved, key=lambda pair: ("train", "dev", "test").index(pair[0]))
