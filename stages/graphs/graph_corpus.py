"""A corpus with graphs: a plain corpus, which every other method reads, with graphs in files beside it.

An item is a text with its graph, or without one. A case is what is asked and scored: several items to choose
from, one item that matches or does not, or a query and a document.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.graphs.node_types import N_QUERY_RELATIONS, NODE_TYPES
from permafrost.stages.graphs.relation_words import in_words
from permafrost.stages.graphs.text_graphs import EDGES, NODES, TextGraphs
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts

ITEMS = pa.schema(
    [
        pa.field("text", pa.int64(), nullable=False),
        pa.field("graph", pa.int64(), nullable=False),
        pa.field("query", pa.int64(), nullable=False),
    ]
)
"""`text` and `query` index into the texts: what the backbone reads, and what its graph's query node starts
from. `graph` is -1 where there is none."""
CASES = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("items", pa.list_(pa.int64()), nullable=False),
        pa.field("label", pa.int64(), nullable=False),
    ]
)
"""`multiple_choice`: one item per choice, and the number of the right one; `classification`: one item and its
class; `unlabelled`: a query, a document and its grade."""
JUDGEMENTS = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("query", pa.int64(), nullable=False),
        pa.field("document", pa.int64(), nullable=False),
        pa.field("grade", pa.int64(), nullable=False),
    ]
)
"""`query` and `document` are items."""

INVERSE_MARK = "^"
"""In front of a relation's name: the same edges from target to source."""
QUERY_RELATIONS = ("query entity", "answer entity")
"""Names of the relations of a query node's edges."""
assert len(QUERY_RELATIONS) == N_QUERY_RELATIONS
_FORMAT = 1


@dataclass(frozen=True)
class GraphCorpus(Corpus):
    """Texts, graphs, and the cases that refer to both. Its `examples` are those of a plain corpus."""

    labels: Sequence[str]
    """Texts of the nodes, each once."""
    label_digests: Sequence[str]
    """SHA-256 of each label."""
    relations: tuple[str, ...]
    """Names of the R relations of the graphs' own edges."""
    graphs: TextGraphs
    """Every graph."""
    items: pa.Table
    """Columns of `ITEMS`."""
    cases: pa.Table
    """Columns of `CASES`, the splits in the order of the examples."""
    documents: tuple[int, ...] = ()
    """Items of all documents that are searched; empty unless the task is a retrieval."""
    judgements: pa.Table = field(default_factory=JUDGEMENTS.empty_table)
    """Columns of `JUDGEMENTS`: every judgement of the splits that are searched."""
    relation_words: tuple[str, ...] = ()
    """Each relation in words, for descriptions; those of `in_words` if not given."""

    left_out: Mapping[str, int] = field(default_factory=dict)
    """What a source did not use, by the reason: numbers of rows, for summaries and reports."""

    def __post_init__(self) -> None:
        if not self.relation_words:
            object.__setattr__(self, "relation_words", tuple(map(in_words, self.relations)))

    @property
    def n_relations(self) -> int:
        """Relations of edges: those of `relations`, two of the query node, and the inverse of each."""
        return len(self.relation_names)

    @cached_property
    def relation_names(self) -> tuple[str, ...]:
        """The name of every relation of an edge; an inverse has a `^` in front, as in SPARQL."""
        forward = (*self.relations, *QUERY_RELATIONS)
        return (*forward, *(f"{INVERSE_MARK}{name}" for name in forward))

    @cached_property
    def _equal_choices(self) -> dict[str, int]:
        """Of questions with choices, how many have two with the same text."""
        if self.task != "multiple_choice":
            return {}
        texts = self.items.column("text").to_pylist()
        cases = self.cases.column("items").to_pylist()
        n = sum(len({texts[item] for item in items}) < len(items) for items in cases)
        return {"n_cases_with_equal_choices": n}

    def case_split(self, name: str) -> pa.Table:
        """The cases of one split.

        Raises:
            NotFoundError: there is no such split.
        """
        column = self.cases.column("split")
        if name not in (splits := pc.unique(column).to_pylist()):
            raise NotFoundError(
                f"the corpus has no cases in a split {quoted(name)}; its splits are {', '.join(splits)}"
            )
        return self.cases.filter(pc.equal(column, name))

    def graph_counts(self) -> dict[str, int]:
        """What its graphs consist of. Edges are the graphs' own: no inverse, none of a query node."""
        return {
            "n_graphs": len(self.graphs),
            "n_nodes": len(self.graphs.node_label) - len(self.graphs),
            "n_edges": int((self.graphs.edge_relation < len(self.relations)).sum()),
            "n_labels": len(self.labels),
            "n_relations": len(self.relations),
            "n_cases": self.cases.num_rows,
            **self._equal_choices,
            **{f"n_left_out_{reason}": n for reason, n in self.left_out.items()},
        }

    def triples(self, graph: SupportsIndex) -> list[tuple[str, str, str]]:
        """Head, relation and tail of a graph's own edges, without inverses and those of the query node."""
        nodes, edges = self.graphs.nodes_of(graph), self.graphs.edges_of(graph)
        label = self.graphs.node_label[nodes].tolist()
        columns = (self.graphs.edge_source, self.graphs.edge_relation, self.graphs.edge_target)
        return [
            (self.labels[int(label[s])], self.relations[r], self.labels[int(label[t])])
            for s, r, t in zip(*(c[edges].tolist() for c in columns), strict=True)
            if r < len(self.relations)
        ]

    def description_parts(self, graph: SupportsIndex) -> list[str]:
        """`head relation tail` of each of a graph's own edges, the relations in words."""
        words = dict(zip(self.relations, self.relation_words, strict=True))
        return [f"{head} {words[relation]} {tail}" for head, relation, tail in self.triples(graph)]

    def description(self, graph: SupportsIndex) -> str:
        """A graph as text, `head relation tail; head relation tail`; "" without edges of its own.

        Source: GT2VEC, section 3.3 (its example leaves a relation out; we follow the sentence).
        """
        return "; ".join(self.description_parts(graph))

    def save(self, folder: Path) -> None:
        """Write a plain corpus and, beside it, labels, nodes, edges, items and cases as parquet, and
        graphs.json."""
        super().save(folder)
        nodes, edges = self.graphs.tables()
        labels = pa.array(self.labels, pa.large_string())
        names = pa.array(self.relation_names, pa.string())
        tables = {
            "labels": pa.table(
                {"digest": pa.array(self.label_digests, pa.string()), "text": labels}
            ),
            # Texts and names besides numbers, for readers that know only this file.
            "nodes": nodes.append_column("text", labels.take(nodes.column("label"))),
            "edges": edges.append_column("name", names.take(edges.column("relation"))),
            "items": self.items,
            "cases": self.cases,
        }
        if self.documents:
            tables["documents"] = pa.table({"item": pa.array(self.documents, pa.int64())})
            tables["judgements"] = self.judgements
        for name, table in tables.items():
            pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
        head = {
            "format": _FORMAT,
            "n_graphs": len(self.graphs),
            "node_types": list(NODE_TYPES),
            "relations": list(self.relations),
            "relation_words": list(self.relation_words),
            "left_out": dict(self.left_out),
            "are_scored": self.graphs.are_scored,
        }
        text = json.dumps(head, indent=2, ensure_ascii=False) + "\n"
        (folder / "graphs.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "GraphCorpus":
        """Load what `save` wrote.

        Raises:
            CorruptDataError: a file is missing or broken, of another format, or refers to what is not there.
        """
        plain = Corpus.load(folder)
        try:
            head = json.loads((folder / "graphs.json").read_text(encoding="utf-8"))
            if head["format"] != _FORMAT or head["node_types"] != list(NODE_TYPES):
                raise ValueError(f"graphs.json has format {head['format']}")
            labels = pq.read_table(folder / "labels.parquet")
            searched = (folder / "documents.parquet").is_file()
            nodes = _read(folder / "nodes.parquet", NODES)
            corpus = cls(
                **vars(plain),
                labels=Texts(labels.column("text")),
                label_digests=Texts(labels.column("digest")),
                relations=tuple(head["relations"]),
                graphs=TextGraphs.of_tables(
                    head["n_graphs"],
                    nodes,
                    _read(folder / "edges.parquet", EDGES),
                    are_scored=head.get("are_scored", _any_score(nodes)),
                ),
                items=_read(folder / "items.parquet", ITEMS),
                cases=_read(folder / "cases.parquet", CASES),
                documents=_documents(folder) if searched else (),
                judgements=(
                    _read(folder / "judgements.parquet", JUDGEMENTS)
                    if searched
                    else JUDGEMENTS.empty_table()
                ),
                relation_words=tuple(head["relation_words"]),
                left_out=head["left_out"],
            )
            corpus.require_sound()
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptDataError(
                f"{folder} holds no graphs of format {_FORMAT}: {error}; delete the artifact and run again"
            ) from error
        return corpus

    def require_sound(self) -> None:
        """Check that whatever one part refers to is there in another.

        Raises:
            ValueError: it is not.
        """
        if len(self.relation_words) != len(self.relations):
            raise ValueError(
                f"{len(self.relations)} relations have {len(self.relation_words)} descriptions"
            )
        self.graphs.require_sound(len(self.labels), len(self.relations))
        _require_in_range("text", self.items.column("text"), 0, len(self.texts))
        _require_in_range("text", self.items.column("query"), 0, len(self.texts))
        _require_in_range("graph", self.items.column("graph"), -1, len(self.graphs))
        items = (
            pc.list_flatten(self.cases.column("items")),
            pa.array(self.documents, pa.int64()),
            *(self.judgements.column(name) for name in ("query", "document")),
        )
        for column in items:
            _require_in_range("item", column, 0, self.items.num_rows)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    return pq.read_table(path, columns=schema.names).cast(schema)


def _any_score(nodes: pa.Table) -> bool:
    """What tells of a corpus from before `are_scored` was written."""
    return bool(nodes.column("relevance").to_numpy().any())


def _documents(folder: Path) -> tuple[int, ...]:
    return tuple(pq.read_table(folder / "documents.parquet").column("item").to_pylist())


def _require_in_range(what: str, column: pa.ChunkedArray | pa.Array, low: int, end: int) -> None:
    values = column.to_numpy()
    if len(values) and not (low <= np.min(values) and np.max(values) < end):
        raise ValueError(f"a {what} is not among the {end:,} that there are")
