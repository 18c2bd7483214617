"""Values that aliases share in an experiment file, under `--set`."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.experiment_files.overrides import overridden, require_no_grid_instead
from permafrost.flows.experiment_files.yaml_reader import read_yaml
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
  c: {<<: *method, optim: {<<: *optim, lr: 0.2}}
seeds: *seeds
report: {title: Shared}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.yaml"
    path.write_text(FILE)
    return path


def of_methods(experiment: Experiment, field: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, method in experiment.methods.items():
        assert isinstance(method, GraphTextMethod)
        found[name] = getattr(method.optim, field)
    return found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"a": 3, "b": 3, "c": 3}),
        (["methods.a.optim.max_epochs=1"], {"a": 1, "b": 3, "c": 3}),
        (["methods.b.optim.max_epochs=1"], {"a": 3, "b": 1, "c": 3}),
        (["methods.c.optim.max_epochs=1"], {"a": 3, "b": 3, "c": 1}),
        (["x-optim.max_epochs=1"], {"a": 1, "b": 1, "c": 1}),
        (["x-optim={max_epochs: 7}"], {"a": 7, "b": 7, "c": 7}),
        (["x-method.optim={max_epochs: 7}"], {"a": 7, "b": 7, "c": 7}),
        # The places come last, wherever they stand.
        (["methods.a.optim.max_epochs=2", "x-optim.max_epochs=1"], {"a": 2, "b": 1, "c": 1}),
        (["x-optim={max_epochs: 7}", "x-optim.max_epochs=8"], {"a": 8, "b": 8, "c": 8}),
        ([f"x-optim.max_epochs={n}" for n in (1, 2, 1)], {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_a_place_changes_alone_and_a_shared_value_everywhere(
    file: Path, overrides: list[str], expected: dict[str, int]
) -> None:
    assert of_methods(load_experiment(file, overrides), "max_epochs") == expected


def test_a_field_beside_a_merge_wins(file: Path) -> None:
    for override in ("x-optim.lr=0.5", "x-optim={lr: 0.5}"):
        rates = of_methods(load_experiment(file, [override]), "lr")
        assert rates == {"a": 0.5, "b": 0.5, "c": 0.2}
    with pytest.raises(InputError, match="5 is merged by <<, which takes a mapping"):
        load_experiment(file, ["x-optim=5"])


def test_a_field_that_is_merged_changes_in_every_copy(file: Path) -> None:
    found = load_experiment(file, ["x-method.model={kind: gnn_only}", "x-method.read=mean"])
    kinds = {n: m.model.kind for n, m in found.methods.items() if isinstance(m, GraphTextMethod)}
    assert kinds == {"a": "gnn_only", "b": "text_only", "c": "gnn_only"}


def test_a_shared_list_is_replaced(file: Path) -> None:
    assert load_experiment(file, ["x-seeds=[4]"]).seeds == (4,)
    assert load_experiment(file, ["seeds=[4]"]).seeds == (4,)


@pytest.mark.parametrize("override", ["x-one=6", "x-other.max_epochs=6", "x-other=6"])
def test_what_nothing_refers_to_cannot_be_set(file: Path, override: str) -> None:
    there = "there are x-optim, x-method, x-seeds, x-one"
    with pytest.raises(InputError, match=f"would change nothing, .*{there}.*name the field itself"):
        load_experiment(file, [override])
    assert load_experiment(file, ["x-one=5"]) == load_experiment(file), "it is 5 already"


def set_in(text: str, *overrides: str) -> None:
    changed = overridden(read_yaml(text, "f"), overrides, Experiment)
    require_no_grid_instead(changed.fields, overrides, changed.changed)


def test_a_shared_value_that_grids_alone_refer_to_cannot_be_set() -> None:
    tried = (
        "x-o: &o {lr: 0.1, max_epochs: 3}\nmethods:\n  a: {optim: *o, grid: {optim.lr: [1, 2]}}\n"
    )
    with pytest.raises(
        InputError, match=r"'x-o\.lr=0\.5' would change nothing, as methods\.a\.grid "
    ):
        set_in(tried, "x-o.lr=0.5")
    set_in(tried, "x-o.lr=0.5", "methods.a.grid={}")
    set_in(tried, "x-o.max_epochs=2")
    set_in(f"{tried}  b: {{optim: *o}}\n", "x-o.lr=0.5")
