"""Values that aliases share in an experiment file, under `--set`."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.methods.graph_text import GraphTextMethod
from permafrost.storage.errors import InputError

FILE = """
name: shared
backbone: {source: none}
x-optim: &optim {lr: 0.1, max_epochs: 3}
x-method: &method {kind: graph_text, model: {kind: text_only}, optim: *optim}
x-seeds: &seeds [1, 2]
x-one: &one 5
tasks: {pairs: {kind: webnlg_pairs, path: none}}
methods:
  a: {<<: *method}
  b: {kind: graph_text, model: {kind: text_only}, optim: *optim}
seeds: *seeds
report: {title: Shared}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.yaml"
    path.write_text(FILE)
    return path


def epochs(experiment: Experiment) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, method in experiment.methods.items():
        assert isinstance(method, GraphTextMethod)
        found[name] = method.optim.max_epochs
    return found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"a": 3, "b": 3}),
        (["methods.a.optim.max_epochs=1"], {"a": 1, "b": 3}),
        (["methods.b.optim.max_epochs=1"], {"a": 3, "b": 1}),
        (["x-optim.max_epochs=1"], {"a": 1, "b": 1}),
        (["x-optim={max_epochs: 7}"], {"a": 7, "b": 7}),
        # The places come last, wherever they stand.
        (["methods.a.optim.max_epochs=2", "x-optim.max_epochs=1"], {"a": 2, "b": 1}),
        (["x-optim={max_epochs: 7}", "x-optim.max_epochs=8"], {"a": 8, "b": 8}),
    ],
)
def test_a_place_changes_alone_and_a_shared_value_everywhere(
    file: Path, overrides: list[str], expected: dict[str, int]
) -> None:
    assert epochs(load_experiment(file, overrides)) == expected


def test_a_shared_list_is_replaced(file: Path) -> None:
    assert load_experiment(file, ["x-seeds=[4]"]).seeds == (4,)
    assert load_experiment(file, ["seeds=[4]"]).seeds == (4,)


@pytest.mark.parametrize(
    "override", ["x-one=6", "x-other.max_epochs=6", "x-other=6", "x-method.read=mean"]
)
def test_what_nothing_refers_to_cannot_be_set(file: Path, override: str) -> None:
    there = "there are x-optim, x-method, x-seeds, x-one"
    with pytest.raises(InputError, match=f"would change nothing, .*{there}.*name the field itself"):
        load_experiment(file, [override])
    assert load_experiment(file, ["x-one=5"]) == load_experiment(file), "it is 5 already"
