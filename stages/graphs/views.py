"""The texts of a corpus with graphs in other roles, as plain corpora, so that their features are stored.

Labels of nodes are texts of their own. A description is a graph written out, with the text that the graph
belongs to; GT2VEC, section 3.3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts

Place = Literal["before", "after"]
"""Where a description stands beside its text."""
TooLong = Callable[[Sequence[str]], Sequence[bool]]
"""Whether each text is longer than the backbone that reads it may be given."""


@dataclass(frozen=True)
class Descriptions(Corpus):
    """Descriptions beside their texts, and how much of the graphs they tell."""

    n_triples: int
    """Of all items; a graph counts for each item that has it."""
    n_left_out: int
    """Triples for which there was no room."""

    def counts(self) -> dict[str, int]:
        """With the triples."""
        return super().counts() | {
            "n_triples": self.n_triples,
            "n_triples_left_out": self.n_left_out,
        }


def labels_view(corpus: GraphCorpus) -> Corpus:
    """A plain corpus of the labels of nodes: example i is label i."""
    labels = corpus.labels
    return Corpus(
        labels,
        _examples(range(len(labels)), "labels"),
        "unlabelled",
        (),
        corpus.label_digests,
    )


def descriptions_view(
    corpus: GraphCorpus, place: Place = "before", too_long: TooLong | None = None
) -> Descriptions:
    """A plain corpus of descriptions: example i is item i, its graph in words and its text; the text alone
    for an item without graph, or whose graph has no edges of its own.

    Args:
        corpus: with graphs.
        place: of the description.
        too_long: of the backbone that reads them. A description that is too long beside its text loses
            triples at its end; the text is never cut here. None for no limit.
    """
    items = zip(*(corpus.items.column(name).to_pylist() for name in ("text", "graph")), strict=True)
    described = [_Described(corpus, text, graph, place) for text, graph in items]
    kept = [one.n_parts for one in described]
    texts = [one.text(one.n_parts) for one in described]
    if too_long is not None:
        for at, (one, is_too_long) in enumerate(zip(described, too_long(texts), strict=True)):
            if is_too_long:
                kept[at] = one.n_that_fit(too_long)
                texts[at] = one.text(kept[at])
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(text, len(numbers)) for text in texts]
    unique = Texts.of(list(numbers))
    n_triples = sum(one.n_parts for one in described)
    return Descriptions(
        unique,
        _examples(rows, "descriptions"),
        "unlabelled",
        (),
        unique.map(text_digest),
        n_triples,
        n_triples - sum(kept),
    )


class _Described:
    """The text of one item, with as many triples of its graph as are asked for."""

    def __init__(self, corpus: GraphCorpus, text: int, graph: int, place: Place) -> None:
        self._text, self._place = corpus.texts[text], place
        self._parts = corpus.description_parts(graph) if graph >= 0 else []
        self.n_parts = len(self._parts)

    def text(self, n_parts: int) -> str:
        parts = [self._text]
        if n_parts:
            parts.insert(0 if self._place == "before" else 1, "; ".join(self._parts[:n_parts]))
        return " ".join(parts)

    def n_that_fit(self, too_long: TooLong) -> int:
        """How many triples do, fewer than all; none where not even one does."""
        fits, too_many = 0, self.n_parts
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if too_long([self.text(middle)])[0]:
                too_many = middle
            else:
                fits = middle
        return fits


def _examples(rows: Sequence[int], split: str) -> pa.Table:
    columns = [
        pa.array([split] * len(rows), pa.string()),
        pa.array(rows, pa.int64()),
        pa.nulls(len(rows), pa.int64()),
        pa.nulls(len(rows), pa.float64()),
    ]
    return pa.table(columns, schema=EXAMPLES)
