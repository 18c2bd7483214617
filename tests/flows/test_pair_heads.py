"""Heads trained on pairs of texts: graded ones by their cosine, classes by both vectors side by side."""

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.nodes.report_writing import text_tokens
from permafrost.flows.pipeline import run_serially
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.flows.experiments import pairs, write
from tests.flows.looked import Looked, look
from tests.flows.scored_answers import answers_as_scored
from tests.stages.extraction.tiny_models import WORDS

SPLITS = ("train", "dev", "test")


def entailed(path: Path, n: int, seed: int) -> Path:
    """Pairs of texts that share their first word, or do not."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for i in range(n):
        first, second = (rng.sample(WORDS[:30], 5) for _ in range(2))
        if i % 2:
            second[0] = first[0]
        same = "same" if first[0] == second[0] else "other"
        rows.append({"a": " ".join(first), "b": " ".join(second), "label": same})
    pq.write_table(pa.table({k: pa.array([r[k] for r in rows]) for k in rows[0]}), path)
    return path


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    graded = {s: str(pairs(folder / f"{s}.parquet", 24, i)) for i, s in enumerate(SPLITS)}
    classes = {s: str(entailed(folder / f"c{s}.parquet", 24, i)) for i, s in enumerate(SPLITS)}
    columns = {"text": "a", "text_pair": "b"}
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2, "schedule": "linear", "warmup": 0.1}
    glot = {"kind": "glot", "n_convs": 1, "hidden": 8, "conv": "gin", "tau": 0.3}
    return {
        "name": "pairs",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "tasks": {
            "graded": {
                "kind": "files",
                "files": graded,
                "task": {"kind": "similarity", **columns, "label": "score"},
            },
            "classes": {
                "kind": "files",
                "files": classes,
                "task": {"kind": "pair_classification", **columns, "label": "label"},
            },
        },
        "metrics": {"classes": "mcc"},
        "methods": {
            "GLOT": {
                "kind": "head",
                "head": glot,
                "layer": "hidden/2",
                "optim": optim,
                "loss": {"kind": "cosine_mse"},
                "metric": "spearman",
            },
            "GLOT on classes": {
                "kind": "head",
                "head": glot,
                "layer": "hidden/2",
                "optim": optim,
                "loss": {"kind": "cross_entropy"},
                "metric": "f1",
            },
            "MLP": {
                "kind": "head",
                "head": {"kind": "mlp", "hidden": 8},
                "layer": "hidden/2",
                "optim": optim,
            },
            "mean": {"kind": "embed"},
            "length": {"kind": "length"},
            "words": {"kind": "bag_of_words", "metric": "accuracy"},
        },
        "seeds": [0],
        "report": {"title": "Pairs"},
    }


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"reviews": "mcc"}, "metrics.reviews names the task 'reviews'; there are graded, classes"),
        ({"graded": "f1"}, "metrics.graded is 'f1', which a task of kind similarity does not have"),
    ],
)
def test_a_metric_must_go_with_its_task(
    tiny_bert: Path, tmp_path: Path, metrics: dict[str, str], message: str
) -> None:
    wrong = experiment(tmp_path, tiny_bert) | {"metrics": metrics}
    with pytest.raises(InputError, match=re.escape(message)):
        load_experiment(write(tmp_path / "experiment.yaml", wrong))


@pytest.mark.deep
@pytest.mark.drawn
def test_heads_are_trained_on_the_tasks_that_go_with_their_loss(
    tiny_bert: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(tmp_path, tiny_bert))
    home = tmp_path / "home"
    result = run_serially(path, home)
    assert result.computed == {
        "corpus": 2,
        "extract": 2,
        "fit": 4,
        "control": 2,
        "embed": 1,
        "score": 5,
        "report": 1,
    }
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    found = {(r["method"], r["task"]): r["metric"] for r in rows}
    assert found == {
        ("GLOT", "graded"): "spearman",
        ("mean", "graded"): "spearman",
        ("GLOT on classes", "classes"): "f1",
        ("MLP", "classes"): "mcc",
        ("length", "classes"): "mcc",
        ("words", "classes"): "accuracy",
        ("MLP", "graded"): "spearman_pearson",
    }
    dag = look(path, home)
    metrics = read_json(
        dag.artifacts.open(dag.nodes.scores["GLOT on classes", "classes", 0].spec.ref)
        / "metrics.json"
    )
    assert {"clean_test", "n_clean_test", "overlap"} <= metrics.keys()
    assert not list((home / "artifacts" / "fit").glob(".draft-*")), "a checkpoint was left"
    _check_token_weights(dag, result.report)
    for cell, n_columns in (("GLOT", "graded"), 1), (("GLOT on classes", "classes"), 2):
        head, scored = (n[*cell, 0].spec.ref for n in (dag.nodes.fits, dag.nodes.scores))
        given = home, str(head), dag.artifacts.open(scored), dag.corpus(cell[1])
        assert answers_as_scored(*given) == n_columns
    assert not run_serially(path, home).computed


def _check_token_weights(dag: Looked, report: Path) -> None:
    """The report's tokens and shares are those that the tokenizer and the scores give."""
    tokenizer = AutoTokenizer.from_pretrained(dag.experiment.backbone.source)
    corpus = dag.corpus("graded")
    found = text_tokens(dag.nodes.report, dag.context, corpus.digests)
    for digest, text in zip(corpus.digests, corpus.texts, strict=True):
        ids = tokenizer(text)["input_ids"]
        assert [t.text for t in found[digest]] == tokenizer.convert_ids_to_tokens(ids)
        specials = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
        assert [t.is_special for t in found[digest]] == [bool(s) for s in specials]
    rows = pq.read_table(report.with_name("token_summary.parquet")).to_pylist()
    (row,) = [r for r in rows if (r["method"], r["task"]) == ("GLOT", "graded")]
    folder = dag.artifacts.open(dag.nodes.scores["GLOT", "graded", 0].spec.ref)
    texts = pq.read_table(folder / "token_weights.parquet").to_pylist()
    assert row["n_texts"] == len(texts) > 30
    outer = [t["weights"][0] + t["weights"][-1] for t in texts]
    assert row["weight_special"] == pytest.approx(sum(outer) / len(outer), abs=1e-6)
    page = report.read_text()
    assert "predicts cosine" in page, "graded pairs"
    assert "predicts same" in page or "predicts other" in page, "pairs with classes"
