"""Linear classifiers on the heads of an experiment: what they read, are computed from, and refuse."""

import re
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.pipeline import run_serially
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.flows.experiments import pairs, rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.test_pair_heads import entailed

SPLITS = ("train", "dev", "test")
HEAD = {"kind": "head", "layer": "hidden/2", "optim": {"max_epochs": 1, "batch_size": 8}}
GRID = {"grid": {"head.hidden": [2, 4]}}


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    classes = {s: str(entailed(folder / f"c{s}.parquet", 30, i)) for i, s in enumerate(SPLITS)}
    graded = {s: str(pairs(folder / f"{s}.parquet", 12, i)) for i, s in enumerate(SPLITS)}
    columns = {"text": "a", "text_pair": "b"}
    scorer = {**HEAD, "head": {"kind": "scorer", "hidden": 4}}
    return {
        "name": "on-heads",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "tasks": {
            "classes": {
                "kind": "files",
                "files": classes,
                "task": {"kind": "pair_classification", **columns, "label": "label"},
            },
            "graded": {
                "kind": "files",
                "files": graded,
                "task": {"kind": "similarity", **columns, "label": "score"},
            },
        },
        "methods": {
            # In front of what it reads: the order of methods is that of the table.
            "trained": {"kind": "linear_on_head", "head": "scorer", "classifier": "svm"},
            "untrained": {"kind": "linear_on_head", "head": "scorer", "weights": "untrained"},
            "chosen": {"kind": "linear_on_head", "head": "scorer, width chosen"},
            "scorer": scorer,
            "scorer, width chosen": {**scorer, **GRID, "tasks": ["classes"]},
        },
        "seeds": [3],
    }


@pytest.mark.deep
def test_classifiers_read_heads_as_trained_and_as_drawn(tiny_bert: Path, tmp_path: Path) -> None:
    path, home, result = run_in(tmp_path, experiment(tmp_path, tiny_bert))
    scored = {(r["method"], r["task"]) for r in rows_of(result)}
    assert {(m, "classes") for m in ("trained", "untrained", "chosen")} < scored
    assert ("trained", "graded") not in scored, "a classifier needs classes"
    dag = look(path, home)
    heads = {m: dag.nodes.fits[m, "classes", 3].inputs_named("head") for m in ("trained", "chosen")}
    assert heads["trained"][0].ref == dag.nodes.fits["scorer", "classes", 3].id
    assert heads["chosen"][0].ref == dag.nodes.fits["scorer, width chosen", "classes", 3].id
    untrained = dag.nodes.fits["untrained", "classes", 3]
    assert not untrained.inputs_named("head")
    assert untrained.config["untrained"]["seed"] == 3
    folder = dag.artifacts.open(dag.nodes.fits["trained", "classes", 3].spec.ref)
    assert read_json(folder / "linear.json")["vectors"] is None
    assert not run_serially(path, home).computed
    # Another training of the head changes what is read trained, and nothing of what is read as drawn.
    more = run_serially(path, home, ["methods.scorer.optim.max_epochs=2"])
    assert more.computed["linear_on_head"] == 1
    wider = look(path, home, ["methods.scorer.head.hidden=5"]).nodes.fits
    assert {m for m, t, s in wider if wider[m, t, s].id != dag.nodes.fits[m, t, s].id} == {
        "trained",
        "untrained",
        "scorer",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"head": "scorr"},
            "methods.trained reads the method 'scorr'; there are trained, untrained",
        ),
        (
            {"head": "untrained"},
            "'untrained' is of kind linear_on_head; name a method of kind",
        ),
        (
            {"head": "scorer, width chosen", "weights": "untrained"},
            "'scorer, width chosen' chooses among settings after training",
        ),
        ({"tasks": ["graded"]}, "scored on tasks of kind classification or pair_classification"),
    ],
)
def test_what_cannot_be_read_is_said(
    tiny_bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    content = experiment(tmp_path, tiny_bert)
    content["methods"]["trained"] |= change
    with pytest.raises(InputError, match=re.escape(says)):
        look(write(tmp_path / "experiment.yaml", content), tmp_path / "home")


def test_a_task_on_which_the_head_is_not_trained_is_said(tiny_bert: Path, tmp_path: Path) -> None:
    content = experiment(tmp_path, tiny_bert)
    content["methods"]["scorer"]["tasks"] = ["graded"]
    with pytest.raises(InputError, match="on the task 'classes', on which that is not trained"):
        look(write(tmp_path / "experiment.yaml", content), tmp_path / "home")
