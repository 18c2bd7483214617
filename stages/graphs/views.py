"""The texts of a corpus with graphs in other roles, as plain corpora, so that their features are stored.

Labels of nodes are texts of their own. A description is a graph written out, with the text that the graph
belongs to; GT2VEC, section 3.3.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts

ViewRole = Literal["labels", "descriptions"]
Place = Literal["before", "after"]
"""Where a description stands beside its text."""
CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""The number of tokens of each text, special ones included."""


def text_view(
    corpus: GraphCorpus,
    role: ViewRole,
    place: Place = "before",
    count: CountTokens | None = None,
    max_tokens: int | None = None,
) -> Corpus:
    """A plain corpus of the texts in a role.

    Args:
        corpus: with graphs.
        role: `labels`: example i is label i. `descriptions`: example i is item i, its graph in words and its
            text; the text alone for an item without graph, or whose graph has no edges of its own.
        place: of the description.
        count: tokens of the backbone that reads descriptions. With `max_tokens`, a description loses triples
            at its end until it fits beside its text, which is never cut here.
        max_tokens: the longest input; None for no limit.
    """
    if role == "labels":
        return _plain(corpus.labels, corpus.label_digests, range(len(corpus.labels)), role)
    items = zip(*(corpus.items.column(name).to_pylist() for name in ("text", "graph")), strict=True)
    described = [_Described(corpus, text, graph, place) for text, graph in items]
    texts = [one.text(one.n_parts) for one in described]
    if count is not None and max_tokens is not None:
        lengths = count(texts)
        for at, (one, length) in enumerate(zip(described, lengths, strict=True)):
            if length > max_tokens:
                texts[at] = one.shortened(count, max_tokens)
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(text, len(numbers)) for text in texts]
    unique = Texts.of(list(numbers))
    return _plain(unique, unique.map(text_digest), rows, role)


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

    def shortened(self, count: CountTokens, max_tokens: int) -> str:
        """With as many triples as fit; none where not even one does."""
        fits, too_many = 0, self.n_parts
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if count([self.text(middle)])[0] <= max_tokens:
                fits = middle
            else:
                too_many = middle
        return self.text(fits)


def _plain(texts: Sequence[str], digests: Sequence[str], rows: Sequence[int], split: str) -> Corpus:
    columns = [
        pa.array([split] * len(rows), pa.string()),
        pa.array(rows, pa.int64()),
        pa.nulls(len(rows), pa.int64()),
        pa.nulls(len(rows), pa.float64()),
    ]
    return Corpus(texts, pa.table(columns, schema=EXAMPLES), "unlabelled", (), digests)
