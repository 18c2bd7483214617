"""What the files of experiments/papers/gt2vec read, made up: the same folders, files and columns."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.stages.graphs.small_knowledge import TRIPLES, write_triples
from tests.stages.graphs.small_webnlg import write_tables

_QUESTIONS = (
    "Where would a dog run?",
    "Where does a bird sit?",
    "What do dogs eat?",
    "What is a bird?",
)
_CHOICES = ("park", "tree", "ice cream", "animal", "hunger")


def write_paper_data(folder: Path) -> Path:
    """All of it, for `PERMAFROST_DATA`."""
    _questions(folder / "commonsenseqa", 5, ("train", "dev"))
    ids = [{"id": f"train {n}"} for n in range(3)]
    _parquet(folder / "commonsenseqa" / "inhouse_train_qids.parquet", ids)
    _questions(folder / "openbookqa", 4, ("train", "dev", "test"))
    facts = [{"sentence": f"a {head} and a {tail}"} for head, _, tail in TRIPLES]
    _parquet(folder / "openbookqa" / "facts.parquet", facts)
    _knowledge(folder)
    _medqa(folder / "medqa")
    _search(folder / "scifact", ("train", "test"))
    _search(folder / "fiqa", ("train", "dev", "test"))
    write_tables(folder / "webnlg_v3_en")
    return folder


def _parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pq.write_table(pa.table(columns), path)


def _questions(folder: Path, n_choices: int, splits: Iterable[str]) -> None:
    for split in splits:
        rows = [
            {
                "id": f"{split} {n}",
                "question": f"{text} ({split})",
                "choices": [*_CHOICES[:n_choices]],
                "label": n,
                "fact1": f"a fact of {text}",
            }
            for n, text in enumerate(_QUESTIONS)
        ]
        _parquet(folder / f"{split}.parquet", rows)


def _knowledge(folder: Path) -> None:
    (folder / "conceptnet_cn100k").mkdir()
    write_triples(folder / "conceptnet_cn100k").rename(
        folder / "conceptnet_cn100k" / "train.parquet"
    )
    (folder / "umls").mkdir()
    lines = ["head,relation,tail", *(",".join(triple) for triple in TRIPLES)]
    (folder / "umls" / "triples.csv").write_text("\n".join(lines) + "\n")
    with gzip.open(folder / "conceptnet-assertions-5.7.0.csv.gz", "wt") as stream:
        for head, relation, tail in TRIPLES:
            ends = (f"/c/en/{end.replace(' ', '_')}" for end in (head, tail))
            cells = (f"/a/[{relation}]", f"/r/{relation}", *ends, json.dumps({"weight": 1.0}))
            stream.write("\t".join(cells) + "\n")


def _medqa(folder: Path) -> None:
    folder.mkdir()
    for split in ("train", "dev", "test"):
        rows = [
            {
                "question": f"{text} ({split})",
                "options": dict(zip("ABCD", _CHOICES, strict=False)),
                "answer": _CHOICES[n],
                "answer_idx": "ABCD"[n],
            }
            for n, text in enumerate(_QUESTIONS)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _search(folder: Path, splits: Iterable[str]) -> None:
    documents = [
        {"doc_id": str(n), "title": "", "text": f"the {head} and the {tail}"}
        for n, (head, _, tail) in enumerate(TRIPLES)
    ]
    _parquet(folder / "corpus.parquet", documents)
    queries: list[dict[str, Any]] = []
    for split in splits:
        own = [
            {"query_id": f"{split} {n}", "text": f"{text} ({split})"}
            for n, text in enumerate(_QUESTIONS)
        ]
        queries += own
        judged = [
            {"query_id": query["query_id"], "doc_id": str(n), "score": 1}
            for n, query in enumerate(own)
        ]
        _parquet(folder / f"qrels_{split}.parquet", judged)
    _parquet(folder / "queries.parquet", queries)
