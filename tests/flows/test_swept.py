"""Methods of an experiment as curves over one of their settings."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.storage.errors import InputError
from tests.flows.experiments import pairs
from tests.stages.extraction.tiny_models import save_model

DILUTION = {
    "kind": "dilution",
    "ratio": 0.5,
    "n_words": 20,
    "gap": 1,
    "n_train": 24,
    "n_dev": 8,
    "n_test": 12,
}
HEAD = {"kind": "head", "layer": "hidden/2"}
SVM = {"kind": "linear_on_head", "classifier": "svm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of three blocks, and graded pairs."""
    folder = tmp_path_factory.mktemp("swept")
    save_model("llama", folder / "llama")
    pairs(folder / "test.parquet", 10, 0)
    return folder


def curves(folder: Path, methods: dict[str, Any], *fields: str, **axis: Any) -> dict[str, Any]:
    """Of an experiment on graded pairs, or on two classes if it has heads."""
    graded = {
        "kind": "files",
        "files": {"test": str(folder / "test.parquet")},
        "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
    }
    is_trained = any(m["kind"] != "embed" for m in methods.values())
    experiment = {
        "name": "swept",
        "backbone": {"source": str(folder / "llama")},
        "recipes": {
            **{f"K {k}": {"kind": "htp", "size": k} for k in (2, 10)},
            "one": "htp",
            "to 2": {"kind": "htp", "stop": 2, "size": 4},
            "to 1": {"kind": "htp", "stop": 1, "size": 4},
        },
        "tasks": {"task": DILUTION if is_trained else graded},
        "methods": methods,
        "seeds": [0],
        "report": {"x_axis": {"kind": "sweep", "label": "x", "fields": [*fields], **axis}},
        **({"capture": "hidden=2@tokens"} if is_trained else {}),
    }
    report = build_graph(load_experiment(experiment)).report
    return {c["name"]: c["values"] for c in report.config["curves"]}


def embedded(recipe: str, layers: str = "2") -> dict[str, str]:
    return {"kind": "embed", "method": "mean", "recipe": recipe, "layers": layers}


def test_methods_that_differ_in_a_field_of_their_recipe_are_a_curve(folder: Path) -> None:
    methods = {
        "mean": {"kind": "embed", "method": "mean", "layers": "2"},
        "HTP, K 10": embedded("K 10"),
        "HTP, K 2": embedded("K 2"),
        "HTP, K 1": embedded("one"),
        # Differs in what is read as well.
        "HTP, K 2, early": embedded("K 2", "1"),
        # `auto` is 2 of 3 blocks, so that this one differs in its size alone.
        "stop given": embedded("to 2"),
    }
    values = {"HTP, K 1": 1, "HTP, K 2": 2, "stop given": 4, "HTP, K 10": 10}
    assert curves(folder, methods, "recipe.size") == {"HTP, K": values}


def test_each_field_has_curves_of_its_own(folder: Path) -> None:
    methods = {
        "rewired to 1": embedded("to 1"),
        "rewired to 2": embedded("to 2"),
        "read at 1": embedded("to 2", "-3"),
        "read last": embedded("to 2", "last"),
    }
    assert curves(folder, methods, "recipe.stop", "layers") == {
        "rewired to": {"rewired to 1": 1, "rewired to 2": 2},
        "layers": {"read at 1": 1, "rewired to 2": 2},
    }


def test_settings_of_a_method_that_is_read_stand_in_the_place_of_its_name(folder: Path) -> None:
    methods: dict[str, Any] = {
        f"tau {tau}": HEAD | {"head": {"kind": "glot", "tau": tau}} for tau in (0.0, 0.6)
    }
    methods |= {f"SVM, tau {tau}": SVM | {"head": f"tau {tau}"} for tau in (0.6, 0.0)}
    methods["scorer"] = HEAD | {"head": {"kind": "scorer"}}
    assert curves(folder, methods, "head.tau", "head.head.tau") == {
        "tau": {"tau 0.0": 0.0, "tau 0.6": 0.6},
        "SVM, tau": {"SVM, tau 0.0": 0.0, "SVM, tau 0.6": 0.6},
    }


def test_a_list_of_one_is_its_number(folder: Path) -> None:
    """As `layers` of a classifier, which may read several."""
    one = {"kind": "linear", "method": "mean"}
    methods = {f"mean {i}": one | {"layers": i} for i in (2, 1)} | {
        "c": one | {"layers": 1, "c": [2.0]}
    }
    assert curves(folder, methods | {"both": one | {"layers": "1,2"}}, "layers") == {
        "mean": {"mean 1": 1, "mean 2": 2}
    }


def test_a_curve_takes_no_methods_name(folder: Path) -> None:
    methods = {"HTP": embedded("one"), "HTP 2": embedded("K 2"), "HTP 10": embedded("K 10")}
    assert [*curves(folder, methods, "recipe.size")] == ["recipe.size"]


def test_a_field_that_makes_no_curve_is_refused(folder: Path) -> None:
    methods = {"HTP, K 2": embedded("K 2"), "HTP, K 10": embedded("K 10")}
    with pytest.raises(
        InputError,
        match=r"names 'recipe\.sizes', but no two methods differ in that alone, as a number; numbers in "
        r"which methods differ are recipe\.size$",
    ):
        curves(folder, methods, "recipe.sizes")


def test_a_log_scale_has_no_place_for_0(folder: Path) -> None:
    methods = {f"tau {tau}": HEAD | {"head": {"kind": "glot", "tau": tau}} for tau in (0.0, 0.6)}
    with pytest.raises(InputError, match=r"scale is 'log', but 'tau 0\.0' lies at 0"):
        curves(folder, methods, "head.tau", scale="log")
