"""The files that people write: experiments, tables of texts, tasks, graphs, questions and knowledge."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.graphs.knowledge.conceptnet import ConceptNetGraph
from permafrost.stages.graphs.knowledge.triples import TriplesGraph
from permafrost.stages.graphs.question_files import QuestionColumns, read_questions
from permafrost.stages.graphs.webnlg_files import read_split
from permafrost.storage.progress import SilentProgress
from tests.campaign.fuzzing import (
    Format,
    cell_values,
    line_values,
    parquet_values,
    yaml_values,
)
from tests.stages.graphs.small_tables import write
from tests.stages.graphs.small_webnlg import write_release, write_tables
from tests.stages.mteb_evaluation import small_tasks

ROWS = [{"text": f"snow {i}", "label": i % 2} for i in range(6)]
QUESTIONS: list[dict[str, Any]] = [
    {"id": "a", "question": "Where do dogs run?", "choices": ["a park", "the moon"], "label": 0},
    {"id": "b", "question": "What is cold?", "choices": ["snow", "fire"], "label": 0},
]
AI2: list[dict[str, Any]] = [
    {
        "id": row["id"],
        "question": {
            "stem": row["question"],
            "choices": [
                {"label": name, "text": text}
                for name, text in zip("AB", row["choices"], strict=True)
            ],
        },
        "answerKey": "A",
    }
    for row in QUESTIONS
]
TRIPLES = [("dog", "IsA", "animal"), ("dog", "AtLocation", "park"), ("park", "HasA", "tree")]
QUERIES = [{"query_id": 1, "text": "what falls"}, {"query_id": 2, "text": "what is hard"}]
DOCUMENTS = [{"doc_id": "a", "text": "snow falls"}, {"doc_id": "b", "text": "ice is hard"}]
JUDGED = [
    {"query_id": 1, "doc_id": "a", "score": 1},
    {"query_id": 2, "doc_id": "b", "score": 2},
]


def formats_of_people(folder: Path) -> dict[str, Format]:
    """One file of each."""
    return {
        "experiment YAML": _experiment(folder / "experiment.yaml"),
        **_tables(folder / "tables"),
        **_searches(folder / "searches"),
        **_tasks(folder / "tasks"),
        **_graphs(folder / "graphs"),
        **_questions(folder / "questions"),
        **_knowledge(folder / "knowledge"),
        **_told(folder / "told"),
    }


def _experiment(path: Path) -> Format:
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    head = {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/1", "optim": optim}
    document = {
        "name": "mine",
        "backbone": {"source": "nowhere"},
        "capture": "hidden=1-2@tokens,values=2",
        "tasks": {"a": {"kind": "dilution", "n_words": 20, "ratio": 0.2, "seed": 1}},
        "methods": {"mean": head, "length": {"kind": "length"}},
        "seeds": [0, 1],
    }
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(document))
    return Format(path, lambda: load_experiment(path, []).name, yaml_values, open=True)


def _tables(folder: Path) -> dict[str, Format]:
    def corpus(path: Path) -> int:
        fields = {
            "kind": "files",
            "files": {"train": str(path)},
            "task": {"kind": "classification"},
        }
        return len(CORPUS_SOURCES.validate(fields).build().texts)

    found: dict[str, Format] = {}
    for suffix in ("csv", "tsv", "jsonl", "json", "parquet"):
        path = written(folder / f"table.{suffix}", ROWS)
        found[f"{suffix} table"] = _read(path, lambda p=path: corpus(p))
    return found


def _searches(folder: Path) -> dict[str, Format]:
    def pairs() -> int:
        fields = {"kind": "retrieval", "path": str(folder), "qrels": {"train": "qrels_train"}}
        return len(CORPUS_SOURCES.validate(fields).build().texts)

    found: dict[str, Format] = {}
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES), ("qrels_train", JUDGED)):
        path = written(folder / f"{name}.jsonl", rows)
        found[f"{name} of a search"] = _read(path, pairs)
    candidates = [
        {"query_id": n, "query": f"query {n}", "document": f"text {n} {yes}", "label": yes}
        for n in (1, 2)
        for yes in (0, 1)
    ]
    path = written(folder / "candidates.parquet", candidates)
    fields = {"kind": "reranking", "files": {"train": str(path)}}
    found["candidates"] = _read(path, lambda: len(CORPUS_SOURCES.validate(fields).build().texts))
    return found


def _tasks(folder: Path) -> dict[str, Format]:
    found: dict[str, Format] = {}
    for kind in small_tasks.KINDS:
        for path in sorted(small_tasks.write_task(folder, kind).glob("*.parquet")):
            task = small_tasks.task(folder, kind)
            found[f"{kind}'s {path.name}"] = _read(path, lambda task=task: str(task.read()))
    return found


def _graphs(folder: Path) -> dict[str, Format]:
    fields, found = write(folder), dict[str, Format]()
    for name in ("nodes", "edges", "examples"):
        path = Path(fields[name])
        found[f"graphs' {name}"] = _read(
            path, lambda: len(CORPUS_SOURCES.validate(fields).build().texts)
        )
    return found


def _questions(folder: Path) -> dict[str, Format]:
    found: dict[str, Format] = {}
    for name, rows in (("questions", QUESTIONS), ("questions of AI2", AI2)):
        for suffix in ("jsonl", "parquet"):
            path = written(folder / f"{name}.{suffix}", rows)
            found[f"{name}, {suffix}"] = _read(path, lambda p=path: _asked(p))
    return found


def _asked(path: Path) -> str:
    return str(read_questions(path, QuestionColumns(), needs_ids=True))


def _knowledge(folder: Path) -> dict[str, Format]:
    triples = [dict(zip(("head", "relation", "tail"), row, strict=True)) for row in TRIPLES]
    path = written(folder / "triples.jsonl", triples)
    assertions = folder / "assertions.csv"
    assertions.write_text(
        "".join(
            f"/a/[{n}]\t/r/{relation}\t/c/en/{head}/n\t/c/en/{tail}\t{json.dumps({'weight': 2.0})}\n"
            for n, (head, relation, tail) in enumerate(TRIPLES)
        )
    )
    quiet = SilentProgress()
    return {
        "triples": _read(path, lambda: str(TriplesGraph(path=str(path)).read(quiet))),
        "assertions": Format(
            assertions,
            lambda: str(ConceptNetGraph(path=str(assertions)).read(quiet)),
            open=True,
        ),
    }


def _told(folder: Path) -> dict[str, Format]:
    tables, release = write_tables(folder / "tables"), write_release(folder / "release")
    xml = next((release / "train").rglob("*.xml"))
    return {
        "texts of triples": _read(tables / "train.jsonl", lambda: len(read_split(tables, "train"))),
        "WebNLG's XML": Format(xml, lambda: len(read_split(release, "train")), open=True),
    }


def _read(path: Path, read: Callable[[], object]) -> Format:
    changes = {
        ".jsonl": line_values,
        ".parquet": parquet_values,
        ".csv": cell_values,
    }
    return Format(path, read, changes.get(path.suffix), open=True)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in a file whose format its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case suffix:
            out = io.StringIO()
            table = csv.DictWriter(
                out, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n"
            )
            table.writeheader()
            table.writerows(rows)
            path.write_text(out.getvalue())
    return path
