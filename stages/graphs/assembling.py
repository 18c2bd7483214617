"""From cases to a corpus with graphs: texts and items are numbered, and the plain examples made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import CASES, ITEMS, JUDGEMENTS, GraphCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts

GraphTask = Literal["multiple_choice", "classification", "unlabelled"]
"""Choosing one of several items, the class of one item, or finding documents for queries."""
ANSWERS = ("wrong", "right")
"""Classes of the plain examples of a multiple choice: one example per choice."""


@dataclass(frozen=True)
class Item:
    """A text and its graph."""

    text: str
    graph: int
    """As numbered by the collector; -1 for none."""
    query: str | None = None
    """What the query node starts from, if not from the text."""


@dataclass(frozen=True)
class Case:
    """What is asked; see `graph_corpus.CASES`."""

    split: str
    items: tuple[Item, ...]
    label: int


@dataclass(frozen=True)
class Judgement:
    """What is known of a query and a document."""

    split: str
    query: Item
    document: Item
    grade: int


@dataclass(frozen=True)
class Searched:
    """What a retrieval is scored on: every document, and the judgements of the splits."""

    documents: Sequence[Item]
    judgements: Sequence[Judgement]


def assemble(
    task: GraphTask,
    cases: Sequence[Case],
    graphs: GraphCollector,
    relations: Sequence[str],
    *,
    label_names: Sequence[str] = (),
    relation_words: Sequence[str] = (),
    searched: Searched | None = None,
    left_out: Mapping[str, int] | None = None,
) -> GraphCorpus:
    """The corpus of these cases. Texts, and items, come once each, in order of first appearance.

    Args:
        task: `multiple_choice`, where an example per choice has the class wrong or right; `classification`,
            where an example is its case; `unlabelled`, where an example is a query with a relevant document.
        cases: split by split.
        graphs: every graph that an item has.
        relations: of the graphs' own edges.
        label_names: of the classes of a `classification`.
        relation_words: each relation in words, if not as `in_words` has it.
        searched: of an `unlabelled` task.
        left_out: see `GraphCorpus`.

    Raises:
        InputError: there are no cases, or no graph has a node.
    """
    if not cases:
        raise InputError("there are no examples; give at least one")
    labels, columns = graphs.finish()
    if not len(labels):
        raise InputError(
            f"none of the {len(columns)} graphs has a node; give graphs with nodes, or use a source without "
            "graphs"
        )
    numbering = _Numbering()
    rows = [(c.split, [numbering.item(i) for i in c.items], c.label) for c in cases]
    examples = [example for case in cases for example in numbering.examples(task, case)]
    documents = tuple(numbering.item(i) for i in (searched.documents if searched else ()))
    judged = [
        (j.split, numbering.item(j.query), numbering.item(j.document), j.grade)
        for j in (searched.judgements if searched else ())
    ]
    texts = Texts.of(list(numbering.texts))
    corpus = GraphCorpus(
        texts=texts,
        examples=_table(examples, EXAMPLES),
        task=task,
        label_names=ANSWERS if task == "multiple_choice" else tuple(label_names),
        digests=texts.map(text_digest),
        labels=labels,
        label_digests=labels.map(text_digest),
        relations=tuple(relations),
        graphs=columns,
        items=_table([*numbering.items], ITEMS),
        cases=_table(rows, CASES),
        documents=documents,
        judgements=_table(judged, JUDGEMENTS),
        relation_words=tuple(relation_words),
        left_out=dict(left_out or {}),
    )
    corpus.require_sound()
    return corpus


def corpus_of_items(
    items: Sequence[Item],
    graphs: GraphCollector,
    relations: Sequence[str],
    relation_words: Sequence[str] = (),
) -> tuple[GraphCorpus, list[int]]:
    """A corpus of items alone, without cases, for embeddings of them; and the number of each item in it.

    Args:
        items: any number, with repeats; equal ones become one.
        graphs: every graph that an item has; it may have no nodes.
        relations: of the graphs' own edges.
        relation_words: each relation in words, if not as `in_words` has it.
    """
    labels, columns = graphs.finish()
    numbering = _Numbering()
    numbers = [numbering.item(item) for item in items]
    texts = Texts.of(list(numbering.texts))
    corpus = GraphCorpus(
        texts=texts,
        examples=EXAMPLES.empty_table(),
        task="unlabelled",
        label_names=(),
        digests=texts.map(text_digest),
        labels=labels,
        label_digests=labels.map(text_digest),
        relations=tuple(relations),
        graphs=columns,
        items=_table([*numbering.items], ITEMS),
        cases=CASES.empty_table(),
        relation_words=tuple(relation_words),
    )
    corpus.require_sound()
    return corpus, numbers


class _Numbering:
    """Numbers of texts and items, in order of first appearance."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.items: dict[tuple[int, int, int], int] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def item(self, item: Item) -> int:
        text = self.text(item.text)
        query = text if item.query is None else self.text(item.query)
        return self.items.setdefault((text, item.graph, query), len(self.items))

    def examples(
        self, task: GraphTask, case: Case
    ) -> list[tuple[str, int, int | None, float | None]]:
        texts = [self.text(item.text) for item in case.items]
        match task:
            case "multiple_choice":
                right = [float(at == case.label) for at in range(len(texts))]
                return [(case.split, t, None, r) for t, r in zip(texts, right, strict=True)]
            case "classification":
                return [(case.split, texts[0], None, float(case.label))]
            case "unlabelled":
                return [(case.split, texts[0], texts[1], None)] if case.label > 0 else []


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema.names)
    arrays = [pa.array(list(c), t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)
