"""What enters the key of a corpus, and what is stored of it, for every kind of source, as it always was.

Run as a script, this file writes the golden file again; explain it in the commit.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import datasets
import pytest

from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.storage.keys import digest

GOLDEN = Path(__file__).parents[2] / "golden" / "corpora.json"

GIVEN = {"dev": {"kind": "from_train", "fraction": 0.25, "seed": 1}}
BOTH = GIVEN | {"test": {"kind": "from_train", "fraction": 0.25, "seed": 2}}
QUERIES = {"kind": "from_train_queries", "fraction": 0.4, "seed": 3}
SIZES = {"n_words": 24, "n_train": 6, "n_dev": 4, "n_test": 2}


def write(folder: Path) -> None:
    """The same bytes everywhere: text formats only."""
    rows = range(1, 13)
    files = {
        "classes.csv": ["text,label", *(f"text number {i},{'ab'[i % 2]}" for i in rows)],
        "pairs.csv": [
            "a,b,score,class",
            *(f"one of {i // 2},two of {i},{i / 4},{i % 3}" for i in rows),
        ],
        "hub/train.csv": ["text,label", *(f"hub text {i},{i % 2}" for i in rows)],
        "long.txt": [" ".join(f"w{i}x{j}" for j in range(8 + i)) for i in rows],
        "search/corpus.jsonl": [
            json.dumps({"_id": f"d{i}", "title": f"T{i}", "text": f"document {i}"}) for i in rows
        ],
        "search/queries.jsonl": [json.dumps({"_id": f"q{i}", "text": f"query {i}"}) for i in rows],
        "search/qrels/train.tsv": [
            "query-id\tcorpus-id\tscore",
            *(f"q{i}\td{i}\t{i % 3}" for i in rows),
        ],
        "candidates.csv": [
            "query_id,query,document,label",
            *(f"{i // 2},query {i // 2},candidate {i},{i % 2}" for i in rows),
        ],
        "listed.jsonl": [
            json.dumps({"q": f"query {i}", "yes": f"answer {i}", "no": [f"other {i}", f"far {i}"]})
            for i in rows
        ],
    }
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


def cases(folder: Path) -> dict[str, dict[str, Any]]:
    """Every kind of source, every kind of task, and every way to dev and test."""
    classes = {"kind": "files", "files": {"train": str(folder / "classes.csv")}}
    graded = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    paired = {**graded, "kind": "pair_classification", "label": "class"}
    pairs = {"kind": "files", "files": {"train": str(folder / "pairs.csv")}, "task": graded}
    long = {
        "kind": "files",
        "files": {"any": str(folder / "long.txt")},
        "task": {"kind": "unlabelled"},
    }
    hub = {"kind": "hub", "path": str(folder / "hub"), "splits": {"train": "train"}}
    candidates = {"kind": "reranking", "files": {"train": str(folder / "candidates.csv")}}
    negatives = {"kind": "unlabelled", "text": "q", "text_pair": "yes", "negative": "no"}
    listed = {"kind": "files", "files": {"train": str(folder / "listed.jsonl")}, "task": negatives}
    return {
        "files": {**classes, "task": {"kind": "classification"}},
        "files, dev and test carved": {**classes, "task": {"kind": "classification"}, **BOTH},
        "files, graded pairs": pairs | BOTH,
        "files, paired classes": pairs | {"task": paired},
        "files, queries carved": {**listed, "dev": QUERIES, "test": QUERIES},
        "files, negatives": listed,
        "hub": {**hub, "task": {"kind": "classification"}, **GIVEN},
        "retrieval": {"kind": "retrieval", "path": str(folder / "search"), "dev": QUERIES},
        "reranking": {**candidates, "test": QUERIES},
        "reranking, negatives": {**candidates, "negatives": "candidates"},
        "dilution": {"kind": "dilution", "ratio": 0.5, "signal": "tiled", "gap": 2, **SIZES},
        "segments": {"kind": "segments", "source": long, "min_words": 4, "n_texts": 6},
        "concatenated": {"kind": "concatenated", "source": pairs, "n_words": 9},
        "concatenated, shared": {
            "kind": "concatenated",
            "source": pairs,
            "n_sentences": 2,
            "distractors": "shared",
            "place": "last",
        },
    }


def current(folder: Path) -> dict[str, dict[str, str]]:
    write(folder)
    found: dict[str, dict[str, str]] = {}
    for name, fields in cases(folder).items():
        source = CORPUS_SOURCES.validate(fields)
        corpus = source.build()
        content = {
            "texts": list(corpus.texts),
            "examples": corpus.examples.to_pydict(),
            "label_names": list(corpus.label_names),
            "task": corpus.task,
        }
        stored = json.dumps(content, sort_keys=True).encode()
        found[name] = {
            "facts": digest(source.facts()),
            "content": hashlib.sha256(stored).hexdigest()[:32],
        }
    return found


def regenerate() -> None:
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(current(Path(folder)), indent=1) + "\n")


def test_facts_and_content_of_every_source_are_those_of_earlier_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert current(tmp_path) == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    regenerate()
