"""Which models of texts with graphs are controls, and which of those must be at chance."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.methods.graph_text import GraphTextMethod
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.graphs.sources.question_answering import GraphQuestions
from permafrost.stages.graphs.sources.webnlg import WebnlgPairs
from permafrost.stages.metrics.records import Role
from tests.flows.experiments import rows_of, run_in
from tests.stages.extraction.tiny_models import save_model
from tests.stages.finetune.tiny_graphs import ENCODER
from tests.stages.graphs.small_webnlg import write_tables

PAIRS = WebnlgPairs(path="webnlg")
QUESTIONS = GraphQuestions.model_validate(
    {
        "kind": "graph_questions",
        "files": {"train": "train.parquet", "dev": "dev.parquet"},
        "knowledge": {"kind": "triples", "path": "triples.csv"},
    }
)
ALONE = {"kind": "gt2vec", "description": "none"}
METHODS: dict[str, tuple[dict[str, Any], tuple[Role, bool], tuple[Role, bool]]] = {
    "GT2VEC": ({}, ("method", False), ("method", False)),
    "QA-GNN": ({"model": {"kind": "qa_gnn"}}, ("method", False), ("method", False)),
    "text only": ({"model": {"kind": "text_only"}}, ("control", True), ("method", False)),
    "text only, LoRA": (
        {"model": {"kind": "text_only"}, "train": {"kind": "lora"}},
        ("control", True),
        ("method", False),
    ),
    "no token": (
        {"model": {**ALONE, "graph_token": "none"}},
        ("control", True),
        ("method", False),
    ),
    "description": (
        {"model": {"kind": "text_only", "of": "description"}},
        ("method", False),
        ("method", False),
    ),
    "graph only": ({"model": {"kind": "gnn_only"}}, ("control", True), ("method", False)),
    "graph of another only": (
        {"model": {"kind": "gnn_only"}, "graphs": "shuffled"},
        ("control", True),
        ("control", True),
    ),
    "graphs of others": (
        {"model": ALONE, "graphs": "shuffled"},
        ("control", True),
        ("control", False),
    ),
    "random node features": (
        {"model": ALONE, "node_features": "random"},
        ("control", False),
        ("control", False),
    ),
    "shuffled labels": ({"labels": "shuffled"}, ("control", True), ("control", True)),
}
"""Fields; role and whether it must be at chance, on pairs of a graph and a text and on questions."""


@pytest.mark.parametrize("name", METHODS)
def test_what_lacks_the_graph_or_the_text_is_a_control(name: str) -> None:
    fields, on_pairs, on_questions = METHODS[name]
    method = GraphTextMethod.model_validate(fields)

    def found(task: CorpusConfig) -> tuple[Role, bool]:
        return method.role_on(task), method.must_be_at_chance(task)

    assert found(PAIRS) == on_pairs
    assert found(QUESTIONS) == on_questions
    # On a task of an evaluation nothing is known of its surface.
    assert method.role_on(None) == on_questions[0]


def test_one_side_alone_is_right_in_half_of_the_pairs(tmp_path: Path) -> None:
    """Every text, and every graph, is once in each class, so that whatever reads one of them gives both of
    its pairs one answer: exactly a half is right, after training too."""
    write_tables(tmp_path / "webnlg")
    save_model("bert", tmp_path / "bert")
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    one_side: dict[str, dict[str, Any]] = {
        "text only": {"model": {"kind": "text_only"}},
        "graph only": {"model": {"kind": "gnn_only", "encoder": ENCODER}},
    }
    methods = {
        name: {"kind": "graph_text", "optim": dict(optim), **f} for name, f in one_side.items()
    }
    experiment = {
        "name": "halves",
        "backbone": {"source": str(tmp_path / "bert"), "max_length": 40},
        "store_dtype": "float32",
        "tasks": {
            "pairs": {
                "kind": "webnlg_pairs",
                "path": str(tmp_path / "webnlg"),
                "n_train": 16,
                "n_dev": 8,
                "n_test": 16,
            }
        },
        "methods": methods,
        "seeds": [0, 1],
        "report": {"title": "Halves"},
        "runtime": {"extract": {"device": "cpu"}},
    }
    _, _, result = run_in(tmp_path, experiment)
    rows = rows_of(result)
    assert [(row["method"], row["role"], row["test"]) for row in rows] == [
        (name, "control", 0.5) for name in one_side for _ in (0, 1)
    ]
    source = result.report.read_text(encoding="utf-8")
    assert "<strong>No control is above chance</strong> in any of 2 results" in source
