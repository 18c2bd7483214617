"""An experiment of linear methods on a tiny backbone: single texts, pairs, controls, and reuse."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import permafrost
from permafrost.flows.pipeline import run_serially
from permafrost.stages.embed import embed_corpus
from permafrost.stages.linear import load_linear
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.flows.experiments import pairs, run_in, write
from tests.flows.looked import look
from tests.flows.scored_answers import answers_as_scored
from tests.flows.test_pair_heads import entailed
from tests.stages.extraction.tiny_models import save_model

SPLITS = ("train", "dev", "test")


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    classes = {s: str(entailed(folder / f"c{s}.parquet", 30, i)) for i, s in enumerate(SPLITS)}
    graded = {s: str(pairs(folder / f"{s}.parquet", 12, i)) for i, s in enumerate(SPLITS)}
    return {
        "name": "linear",
        "backbone": {"source": str(backbone)},
        "recipes": {"bare": "plain:specials=exclude"},
        "tasks": {
            "single": {
                "kind": "files",
                "files": classes,
                "task": {"kind": "classification", "text": "a", "label": "label"},
            },
            "pairs": {
                "kind": "files",
                "files": classes,
                "task": {
                    "kind": "pair_classification",
                    "text": "a",
                    "text_pair": "b",
                    "label": "label",
                },
            },
            "graded": {
                "kind": "files",
                "files": graded,
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            },
        },
        "metrics": {"pairs": "mcc"},
        "methods": {
            "probe": {"kind": "linear", "layers": [1, 2, "1-2"], "c": [0.1, 1]},
            "SVM": {
                "kind": "linear",
                "recipe": "bare",
                "method": "max",
                "classifier": "svm",
                "pair_features": "concat",
                "normalise": "l2",
                "metric": "f1",
                "tasks": ["pairs"],
            },
            "shuffled": {"kind": "linear", "labels": "shuffled", "tasks": ["single"]},
            "cosine": {"kind": "embed"},
        },
        "seeds": [3, 4],
        "report": {"title": "Linear"},
    }


@pytest.mark.drawn
@pytest.mark.deep
def test_linear_methods_are_scored_reported_and_reused(tiny_bert: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(tmp_path, tiny_bert))
    home = tmp_path / "home"
    plan = look(path, home).plan()
    assert {r.stage: r.n_run for r in plan.rows}["linear"] == 5
    result = run_serially(path, home)
    assert result.computed == {
        "corpus": 3,
        "extract": 4,
        "linear": 5,
        "embed": 1,
        "score": 1,
        "report": 1,
    }
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    found = {(r["method"], r["task"], r["seed"]): (r["metric"], r["role"]) for r in rows}
    assert found == {
        ("probe", "single", 3): ("accuracy", "method"),
        ("probe", "pairs", 3): ("mcc", "method"),
        ("SVM", "pairs", 3): ("f1", "method"),
        ("shuffled", "single", 3): ("accuracy", "control"),
        ("shuffled", "single", 4): ("accuracy", "control"),
        ("cosine", "graded", 3): ("spearman", "method"),
    }
    page = result.report.read_text(encoding="utf-8")
    assert "probe" in page
    assert "shuffled" in page
    again = run_serially(path, home)
    assert not again.computed
    assert again.reused["linear"] == 5
    # Another strength is another artifact; the seeds are no part of what has nothing random.
    changed = run_serially(path, home, ["methods.probe.c=[0.5]"])
    assert changed.computed == {"linear": 2, "report": 1}
    seeded = run_serially(path, home, ["seeds=[4]"])
    assert seeded.computed == {"report": 1}


def test_the_artifact_holds_the_classifier_of_these_vectors(
    tiny_bert: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(tmp_path, tiny_bert))
    home = tmp_path / "home"
    run_serially(path, home)
    dag = look(path, home)
    folder = dag.artifacts.open(dag.nodes.fits["probe", "single", 3].spec.ref)
    model, metrics = load_linear(folder), read_json(folder / "metrics.json")
    corpus = dag.corpus("single")
    made = embed_corpus(model.vectors, dag.members("default", "single"), corpus, SilentProgress())
    train, test = corpus.split("train"), corpus.split("test")
    scaler = StandardScaler()
    rows = scaler.fit_transform(made.vectors[train["text"].to_numpy()].astype(np.float64))
    reference = LogisticRegression(C=model.c, max_iter=5000).fit(rows, train["label"].to_numpy())
    tested = made.vectors[test["text"].to_numpy()]
    expected = reference.predict(scaler.transform(tested.astype(np.float64)))
    assert model.predict(tested).tolist() == expected.tolist()
    assert metrics["test"] == np.mean(expected == test["label"].to_numpy())
    assert metrics["converged"] is True
    # What is predicted of texts is what was scored; a support vector machine has no probabilities.
    for cell, n_columns in (("probe", "single"), 2), (("probe", "pairs"), 2), (("SVM", "pairs"), 0):
        linear = dag.nodes.fits[*cell, 3].spec.ref
        scored = dag.artifacts.open(linear)
        given = home, str(linear), scored, dag.corpus(cell[1])
        assert answers_as_scored(*given) == n_columns
    manifest = dag.artifacts.manifest(dag.nodes.fits["shuffled", "single", 4].spec.ref)
    assert manifest.spec.config["seed"] == 4
    assert manifest.summary["seed"] == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": "auto"}, "methods.probe: layers 'auto' are"),
        ({"layers": ["sixth"]}, "'sixth' is not a layer"),
        ({"layers": [7]}, "hidden=7"),
        ({"layers": []}, "methods.probe.layers: expected a list of at least 1 (given: [])"),
        ({"recipe": "eol"}, "methods.probe reads the recipe 'eol'; there are default, bare"),
        ({"tasks": ["pears"]}, "methods.probe names the task 'pears'"),
        ({"tasks": ["graded"]}, "scored on tasks of kind classification or pair_classification"),
        ({"whitening": {}}, "methods.probe.whitening: there is no such field"),
        ({"metric": "spearman"}, "'accuracy', 'mcc' or 'f1'"),
    ],
)
def test_wrong_linear_methods_say_what_is_wrong(
    tiny_bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    content = experiment(tmp_path, tiny_bert)
    content["methods"]["probe"] |= change
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match=re.escape(says)):
        look(path, tmp_path / "home")


@pytest.mark.deep
def test_a_classifier_on_an_ensemble_of_prompts_answers_from_all_of_them(tmp_path: Path) -> None:
    content = experiment(tmp_path, save_model("llama", tmp_path / "llama"))
    del content["tasks"]["graded"], content["methods"]["cosine"], content["methods"]["SVM"]
    prompts = ["A {text}", "B {text}"]
    content["recipes"]["two"] = {"kind": "meta_eol", "prompts": prompts}
    content["methods"]["probe"] |= {"recipe": "two", "combine": "concatenate", "method": "last"}
    path, home, _ = run_in(tmp_path, content)
    dag = look(path, home)
    linear = dag.nodes.fits["probe", "pairs", 3].spec.ref
    assert len({i.split("/")[1] for i in dag.artifacts.manifest(linear).spec.inputs}) == 3
    given = home, str(linear), dag.artifacts.open(linear), dag.corpus("pairs")
    assert answers_as_scored(*given) == 2
    encoder = permafrost.open(home).encoder(str(linear), device="cpu")
    texts, others = ["ice", "snow melts"], ["snow", "a river"]
    alone = encoder.predict(texts, others)
    cached = permafrost.predict(texts, others, head=str(linear), home=home, device="cpu")
    assert isinstance(alone, permafrost.PredictedClasses)
    assert isinstance(cached, permafrost.PredictedClasses)
    np.testing.assert_allclose(alone.probabilities, cached.probabilities, rtol=1e-3, atol=1e-3)
    assert encoder.encode(texts).shape[1] % 2 == 0
