"""Sources of questions that are linked to a small knowledge graph, and what their corpora hold."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.linked import LinkedSource
from permafrost.storage.keys import digest
from tests.stages.graphs.small_knowledge import knowledge

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
TRAIN = [
    ("a", "Where would dogs chase birds?", ["a tree", "the moon"], 0),
    ("b", "What do dogs eat?", ["ice cream", "animals"], 1),
    ("c", "Who?", ["nobody", "somebody"], 1),
]


def table(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def questions(folder: Path, rows: Any = None, **fields: Any) -> LinkedSource:
    given = [
        {"id": k, "question": t, "choices": c, "label": n, "fact1": f"fact {k}"}
        for k, t, c, n in (TRAIN if rows is None else rows)
    ]
    files = {split: table(folder, split, given) for split in ("train", "dev")}
    config = {"kind": "graph_questions", "files": files, "knowledge": knowledge(folder), **fields}
    source = ADAPTER.validate_python(config)
    assert isinstance(source, LinkedSource)
    return source


def built(source: LinkedSource) -> GraphCorpus:
    corpus = source.build()
    assert isinstance(corpus, GraphCorpus)
    return corpus


def graph_of(corpus: GraphCorpus, item: int) -> dict[str, int]:
    """Label to type of every node; "" is the query node."""
    rows = corpus.graphs.nodes_of(int(corpus.items.column("graph").to_pylist()[item]))
    labels = ["" if n < 0 else corpus.labels[int(n)] for n in corpus.graphs.node_label[rows]]
    return dict(zip(labels, corpus.graphs.node_type[rows].tolist(), strict=True))


def texts(corpus: GraphCorpus, column: str = "text") -> list[str]:
    return [corpus.texts[n] for n in corpus.items.column(column).to_pylist()]


def require_all_counted(make: Any, others: dict[str, Any], names: set[str], moved: Path) -> None:
    """Every field changes the facts, and the folder does not."""
    facts = [make(**{name: value}).facts() for name, value in others.items()]
    facts.append(make().facts())
    assert {*others} == names - {"kind"}
    assert len({digest(some) for some in facts}) == len(facts)
    moved.mkdir()
    assert make(moved).facts() == facts[-1]


def other_links(folder: Path) -> dict[str, Any]:
    """Another value of every field of a source that links."""
    backbone = {"source": "minilm"}
    return {
        "knowledge": knowledge(folder, relations="raw"),
        "node_relevance": {"kind": "cosine", "backbone": backbone},
        "max_nodes": 100,
        "max_words": 2,
    }
