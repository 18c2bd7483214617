"""What enters the key of a corpus, and what is stored of it, for every kind of source, as it always was.

Run as a script, this file writes the golden file again; explain it in the commit.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import datasets
import pytest
from pydantic import ValidationError

from permafrost.stages.corpus.source import CORPUS_SOURCES, TaskSource
from permafrost.stages.graphs.linked import LinkedSource
from permafrost.storage.keys import digest
from tests.stages.graphs.small_tables import EDGES, EXAMPLES, NODES
from tests.stages.graphs.small_webnlg import entries

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
    for name, table in zip(("nodes", "edges", "examples"), (NODES, EDGES, EXAMPLES), strict=True):
        files[f"graphs/{name}.csv"] = [",".join(map(str, row)) for row in table]
    files["knowledge.csv"] = [
        "head,relation,tail",
        *(
            f"{one},isA,number {i}"
            for i, one in zip(rows, ("query", "document", "text") * 4, strict=True)
        ),
    ]
    files["more_knowledge.csv"] = ["head,relation,tail", "query,isA,text"]
    files["questions.jsonl"] = [
        json.dumps(
            {"id": f"q{i}", "question": f"query {i}?", "choices": ["text", "other"], "label": 0}
        )
        for i in rows
    ]
    for split in ("train", "dev", "test"):
        files[f"webnlg/{split}.jsonl"] = [
            json.dumps({"text": text, "triples": triples}) for text, triples in entries(split)
        ]
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
    knowledge = {"kind": "triples", "path": str(folder / "knowledge.csv")}
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
        "graphs": {
            "kind": "graphs",
            **{n: str(folder / f"graphs/{n}.csv") for n in ("nodes", "edges", "examples")},
        },
        "graph_questions": {
            "kind": "graph_questions",
            "files": {"train": str(folder / "questions.jsonl")},
            "knowledge": knowledge,
        },
        "graph_retrieval": {
            "kind": "graph_retrieval",
            "path": str(folder / "search"),
            "n_dev_queries": 3,
            "knowledge": knowledge,
        },
        "webnlg_pairs": {
            "kind": "webnlg_pairs",
            "path": str(folder / "webnlg"),
            "n_train": 8,
            "n_dev": 8,
            "n_test": 8,
        },
        "concatenated": {"kind": "concatenated", "source": pairs, "n_words": 9},
        "concatenated, shared": {
            "kind": "concatenated",
            "source": pairs,
            "n_sentences": 2,
            "distractors": "shared",
            "place": "last",
        },
        "texts": {"kind": "texts", "texts": ["A person rides.", "What is a genome?"]},
        "joined": {"kind": "joined", "source": pairs, "n_pairs": 2, "n_bins": 1},
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


def others(field: str, annotation: Any, folder: Path) -> list[Any]:
    """Values that a field might also have: of files and columns by name, of the others by type."""
    named: dict[str, list[Any]] = {
        "files": [{"train": str(folder / "pairs.csv")}, {"train": str(folder / "listed.jsonl")}],
        "path": [str(folder / "other"), "org/other"],
        "revision": ["f" * 40],
        "texts": [["A person rides."]],
        "delimiter": [";"],
        "encoding": ["latin-1"],
        "splits": [{"train": "validation"}],
        "corpus": ["queries"],
        "queries": ["corpus"],
        "qrels": [{"train": "qrels/other"}],
        "task": ["retrieval", {"kind": "unlabelled"}, {"kind": "unlabelled", "text": "long"}],
        "dev": [QUERIES, {"kind": "given"}],
        "test": [QUERIES, {"kind": "given"}],
        "source": [],
        "sample": [{"n_rows": {"train": 5}}],
        "nodes": [str(folder / "pairs.csv")],
        "edges": [str(folder / "pairs.csv")],
        "examples": [str(folder / "pairs.csv")],
        "relations": [["one", "another"], "unfiltered"],
        "relation_words": [{"in": "is inside"}],
        "merged": [[1, 2]],
        "knowledge": [{"kind": "triples", "path": str(folder / "more_knowledge.csv")}],
        "node_relevance": [{"kind": "cosine", "backbone": {"source": "minilm"}}],
        "inhouse_train_qids": [str(folder / "classes.csv")],
        "with_facts": [{"kind": "gold"}],
        "cut": [{"tokenizer": str(folder / "tokenizer")}],
    }
    by_type = {int: [0, 1, 2, 4, 30], float: [0.25], str: ["other"]}
    parts = [annotation, *get_args(annotation)]
    literals = [v for part in parts if get_origin(part) is Literal for v in get_args(part)]
    found = [v for part in parts for v in by_type.get(part, [])]
    return named.get(field, [*literals, *found])


def changed(source: TaskSource, field: str, folder: Path) -> TaskSource | None:
    """The same source with another value of one field; None where this test knows no such value."""
    given = source.model_dump(exclude_unset=True)
    inner = getattr(source, field)
    values = (
        [changed(inner, f, folder) for f in ("files", "task")]
        if isinstance(inner, TaskSource)
        else others(field, type(source).model_fields[field].annotation, folder)
    )
    # One length of a concatenation excludes the other.
    beside = [{}, {"n_words": None}]
    for value, more in product(values, beside):
        known = {k: v for k, v in more.items() if k in type(source).model_fields}
        with contextlib.suppress(ValidationError):
            other = CORPUS_SOURCES.validate({**given, **known, field: value})
            if getattr(other, field) != inner:
                return other
    return None


# Sources that link: tests/stages/graphs/test_linked_sources.py
KINDS = [k for k, source in CORPUS_SOURCES.kinds().items() if not issubclass(source, LinkedSource)]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_source_is_among_its_facts(kind: str, tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other")
    shutil.copytree(tmp_path / "search", tmp_path / "other", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "webnlg", tmp_path / "other", dirs_exist_ok=True)
    (tmp_path / "other" / "train.jsonl").write_text('{"text": "A", "triples": ["a | b | c"]}\n')
    (tmp_path / "other" / "corpus.jsonl").write_text('{"_id": "d1", "text": "another"}\n')
    (tmp_path / "search" / "qrels" / "other.tsv").write_text("q1\td1\t1\n")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}\n")
    # A folder has no revision.
    hub = {**cases(tmp_path)["hub"], "path": "org/name", "revision": "0" * 40}
    source = CORPUS_SOURCES.validate(hub if kind == "hub" else cases(tmp_path)[kind])
    seen = {digest(source.facts())}
    for field in type(source).model_fields:
        if field == "kind":
            continue
        other = changed(source, field, tmp_path)
        assert other is not None, f"no other value of {field} is known to this test"
        assert digest(other.facts()) not in seen, f"{field} is not among the facts"
        seen.add(digest(other.facts()))


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
