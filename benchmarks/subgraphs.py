"""Graphs for questions and for searches: time, sizes, texts without entities, graphs that were cut."""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.progress import SilentProgress

SETS = ("commonsenseqa", "openbookqa", "openbookqa_facts", "scifact")


def sources(data: Path) -> dict[str, dict[str, Any]]:
    """Configs of corpora, from a folder with the data sets."""
    triples = data / "conceptnet_cn100k" / "train.parquet"
    graph = {"kind": "triples", "path": str(triples), "relations": "merged"}
    common, book = data / "commonsenseqa", data / "openbookqa"
    questions = {"kind": "graph_questions", "knowledge": graph}
    of_book = {s: str(book / f"{s}.parquet") for s in ("train", "dev", "test")}
    facts = {"kind": "retrieved", "path": str(book / "facts.parquet")}
    return {
        "commonsenseqa": {
            **questions,
            "files": {s: str(common / f"{s}.parquet") for s in ("train", "dev")},
            "inhouse_train_qids": str(common / "inhouse_train_qids.parquet"),
        },
        "openbookqa": {**questions, "files": of_book},
        "openbookqa_facts": {**questions, "files": of_book, "with_facts": facts},
        "scifact": {
            "kind": "graph_retrieval",
            "path": str(data / "scifact"),
            "n_dev_queries": 100,
            "knowledge": graph,
        },
    }


def measure(name: str, config: dict[str, Any]) -> None:
    """Build a corpus, save it, and print a line for each thing that is measured."""
    source = TypeAdapter[CorpusConfig](CorpusConfig).validate_python(config)
    wall, cpu = time.perf_counter(), time.process_time()
    corpus = source.build_showing(SilentProgress())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert isinstance(corpus, GraphCorpus)
    with tempfile.TemporaryDirectory() as folder:
        corpus.save(Path(folder))
        n_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
    nodes, edges = np.diff(corpus.graphs.node_offsets), np.diff(corpus.graphs.edge_offsets)
    cases = ", ".join(f"{corpus.case_split(s).num_rows:,} {s}" for s in corpus.splits)
    print(f"{name}: {cpu:.1f} s of processor time, {wall:.1f} s; {n_bytes / 1e6:.1f} MB")
    print(f"  cases {cases}; {len(nodes):,} graphs, {len(corpus.labels):,} labels")
    for what, counts in (("nodes", nodes), ("edges", edges)):
        low, middle, high, top = np.percentile(counts, [5, 50, 95, 100])
        print(
            f"  {what} a graph: mean {counts.mean():.1f}; 5% {low:.0f}, median {middle:.0f}, "
            f"95% {high:.0f}, most {top:.0f}"
        )
    print(f"  without entities {(nodes == 1).mean():.3%}; at 200 nodes {(nodes == 200).mean():.3%}")


def main() -> None:
    """Measure the sets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS)
    chosen = parser.parse_args()
    for name in chosen.only:
        measure(name, sources(chosen.data)[name])


if __name__ == "__main__":
    main()
