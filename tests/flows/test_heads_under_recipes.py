"""A head under a recipe by name is the head of an experiment whose own recipe that is."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment

PROMPT = "template:template=the ice is {text} !"
HEAD = {"kind": "head", "head": {"kind": "glot", "hidden": 4}, "optim": {"max_epochs": 1}}
GRID = {"grid": {"layer": ["hidden/1", "hidden/2"]}}


def graph(backbone: Path, **fields: Any) -> ExperimentGraph:
    return build_graph(load_experiment(tiny_experiment(backbone) | fields))


def test_it_has_the_same_keys_and_needs_no_capture(tiny_bert: Path) -> None:
    named = graph(
        tiny_bert,
        capture="hidden=2@tokens",
        recipes={"prompt": PROMPT},
        methods={
            "plain": {**HEAD, "layer": "hidden/2"},
            "prompted": {**HEAD, **GRID, "layer": "hidden/last", "recipe": "prompt"},
        },
    )
    own = graph(
        tiny_bert,
        recipe=PROMPT,
        capture="hidden=1-3@tokens",
        methods={"prompted": {**HEAD, **GRID, "layer": "hidden/last"}},
    )
    cell = ("prompted", "ratio 0.2", 0)
    assert named.fits[cell].id == own.fits[cell].id
    # Nothing but token weights, which the report could not show, sets the scores apart.
    assert named.scores[cell].config == own.scores[cell].config | {"n_weight_texts": 0}
    assert named.scores[cell].inputs == own.scores[cell].inputs
    assert {"extract prompt · ratio 0.2", "extract ratio 0.2"} <= {n.label for n in named.graph}
    arrays = {r: s.targets[0].arrays for r, s in named.stores.items()}
    assert set(arrays["prompt"]) >= {"hidden/1", "hidden/2"}
    assert "hidden/1" not in arrays["default"]


def test_an_ensemble_of_prompts_is_refused(tiny_bert: Path) -> None:
    method = {**HEAD, "layer": "hidden/2", "recipe": "eight"}
    with pytest.raises(InputError, match="'eight' is an ensemble of 8 prompts, which heads"):
        graph(tiny_bert, recipes={"eight": "meta_eol"}, methods={"eight": method})
    with pytest.raises(InputError, match="reads the recipe 'nine'; there are default, eight"):
        graph(
            tiny_bert,
            recipes={"eight": "meta_eol"},
            methods={"nine": {**method, "recipe": "nine"}},
        )


@pytest.mark.deep
def test_the_report_shows_the_weights_of_the_others(tiny_bert: Path, tmp_path: Path) -> None:
    fields = {
        "capture": "hidden=2@tokens",
        "recipes": {"prompt": PROMPT},
        "seeds": [0],
        "methods": {
            "plain": {**HEAD, "layer": "hidden/2"},
            "prompted": {**HEAD, "layer": "hidden/2", "recipe": "prompt"},
            "constant": {"kind": "constant"},
        },
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert) | fields))
    page = run_serially(path, tmp_path / "home").report.read_text(encoding="utf-8")
    assert "Token weights" in page
    assert "prompted" in page
    assert "constant" in page
