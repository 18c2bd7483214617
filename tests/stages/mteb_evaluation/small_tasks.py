"""A small local task of every kind, as parquet files in a folder each."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.mteb_evaluation import LOCAL_TASKS, LocalTask
from tests.stages.extraction.tiny_models import WORDS

KINDS = (
    "sts",
    "classification",
    "pair_classification",
    "clustering",
    "retrieval",
    "reranking",
    "summarization",
)
_NOUNS = WORDS[:12]


def task(folder: Path, kind: str, **fields: Any) -> LocalTask:
    """The config of the task that `write_task` wrote."""
    content = {"kind": "local", "type": kind, "path": str(folder / kind), **fields}
    return LOCAL_TASKS.validate(content)


def write_tasks(folder: Path) -> Path:
    """Write one task of every kind."""
    for kind in KINDS:
        write_task(folder, kind)
    return folder


def write_task(folder: Path, kind: str) -> Path:
    """Write the files of a task and return their folder."""
    tables = _MAKERS[kind](random.Random(kind))
    for name, rows in tables.items():
        write_rows(folder / kind / f"{name}.parquet", rows)
    return folder / kind


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A parquet file of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)


def _sentence(rng: random.Random, n_words: int = 6) -> str:
    return " ".join(rng.choices(WORDS[:30], k=n_words))


def _near(rng: random.Random, text: str, n_new: int) -> str:
    """The text with some of its words replaced."""
    words = text.split()
    for place in rng.sample(range(len(words)), n_new):
        words[place] = rng.choice([word for word in WORDS[:30] if word != words[place]])
    return " ".join(words)


def _sts(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for i in range(24):
        first, n_new = _sentence(rng), i % 6
        rows.append(
            {"sentence1": first, "sentence2": _near(rng, first, n_new), "score": 5.0 - n_new}
        )
    return {"test": rows}


def _pair_classification(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for i in range(24):
        first = _sentence(rng)
        second = _near(rng, first, 2) if i % 3 else _sentence(rng)
        rows.append({"sentence1": first, "sentence2": second, "label": int(bool(i % 3))})
    return {"test": rows}


def _classified(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Three classes, each with words that it prefers."""
    rows: list[dict[str, Any]] = []
    for i in range(n):
        mine = _NOUNS[4 * (i % 3) : 4 * (i % 3) + 4]
        words = [*rng.choices(mine, k=3), *rng.choices(WORDS[:30], k=4)]
        rows.append({"text": " ".join(words), "label": i % 3})
    return rows


def _classification(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    return {"train": _classified(rng, 60), "test": _classified(rng, 24)}


def _clustering(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    return {"test": _classified(rng, 45)}


def _retrieval(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    corpus = [
        {"doc_id": f"d{i}", "title": _sentence(rng, 2) if i % 4 else "", "text": _sentence(rng, 9)}
        for i in range(30)
    ]
    queries, qrels = list[dict[str, Any]](), list[dict[str, Any]]()
    for i in range(9):
        queries.append({"query_id": f"q{i}", "text": _near(rng, corpus[i]["text"], 4)})
        if i < 7:  # the others have no answer
            qrels.append({"query_id": f"q{i}", "doc_id": f"d{i}", "score": 2})
            qrels.append({"query_id": f"q{i}", "doc_id": f"d{i + 10}", "score": i % 2})
    return {"corpus": corpus, "queries": queries, "qrels_test": qrels}


def _reranking(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for i in range(6):
        query = _sentence(rng)
        for place in range(5):
            is_answer = i < 5 and place == i
            document = _near(rng, query, 3) if is_answer else _sentence(rng, 7)
            rows.append(
                {"query_id": i, "query": query, "document": document, "label": int(is_answer)}
            )
    return {"test": rows}


def _summarization(rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    docs, summaries = list[dict[str, Any]](), list[dict[str, Any]]()
    for i in range(4):
        human = [_sentence(rng, 8) for _ in range(3)]
        docs.append({"doc_id": f"t{i}", "references": human})
        for n_new in range(6):
            summary = _near(rng, human[n_new % 3], n_new + 1)
            summaries.append({"doc_id": f"t{i}", "summary": summary, "relevance": 5.0 - n_new / 2})
    return {"docs": docs, "summaries": summaries}


_MAKERS = {
    "sts": _sts,
    "classification": _classification,
    "pair_classification": _pair_classification,
    "clustering": _clustering,
    "retrieval": _retrieval,
    "reranking": _reranking,
    "summarization": _summarization,
}
