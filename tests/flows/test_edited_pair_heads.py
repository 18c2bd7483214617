"""Editing a head on every layer, its loss or a plug-in of either changes the keys of what is trained with it,
and of what is made from that; no other key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.freeze import LAYERS_HEADS, PAIR_LOSSES
from permafrost.stages.freeze.pair_heads import CosineMlp
from tests.flows.editing import edit as edit
from tests.flows.layers_experiments import SIZES, experiment, written
from tests.short import short

PLUGIN = '''
from typing import Literal

from permafrost.stages.freeze.siamese import SiameseHead

SCALE = 1.0


class Mine(SiameseHead):
    """A siamese head that starts from smaller weights."""

    kind: Literal["mine"] = "mine"

    def build(self, n_layers, d_model, generator):
        head = super().build(n_layers, d_model, generator)
        for weights in head.parameters():
            weights.data.mul_(SCALE)
        return head
'''
ENCODED = {"kind": "unified", "encoders": {"early": 8, "late": 8}}
HEADS: dict[str, dict[str, Any]] = {
    **{name: {"kind": name} for name in ("cosine_mlp", "siamese", "mine")},
    "autoencoder_siamese": {"kind": "autoencoder_siamese", "encoders": SIZES},
    "unified": ENCODED,
    "unified_projection": ENCODED | {"kind": "unified_projection"},
}
LOSSES = ("mse", "log_variance", "variance", "l1")
ON_HEADS = "cosines of codes"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Data, a backbone and a plug-in."""
    folder = tmp_path_factory.mktemp("pair-heads")
    (folder / "mine.py").write_text(PLUGIN)
    return {**written(folder), "mine": str(folder / "mine.py")}


@pytest.fixture(scope="module")
def file(files: dict[str, str]) -> Path:
    """Every head, every loss, and an MLP on two of the heads."""
    method = {"kind": "layers", "loss": "mse", "max_epochs": 1}
    content = experiment(files) | {
        "plugins": [files["mine"]],
        "pretrainings": {},
        "methods": {
            **{name: method | {"head": head} for name, head in HEADS.items()},
            **{
                f"by {loss}": method | {"head": {"kind": "cosine_mlp", "hidden": 3}, "loss": loss}
                for loss in LOSSES
            },
            ON_HEADS: {
                "kind": "layers_on_heads",
                "heads": ["unified", "unified_projection"],
                "loss": "l1",
            },
        },
        "seeds": [0],
        "report": {"title": "Pairs"},
    }
    path = Path(files["mine"]).with_name("pairs.yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def built(file: Path) -> ExperimentGraph:
    return build_graph(load_experiment(file))


def keys(graph: ExperimentGraph) -> dict[str, set[str]]:
    """By method, the keys of its fit and its scores."""
    found = {name: {node.id} for (name, _, _), node in graph.fits.items()}
    for (name, _, _), node in graph.scores.items():
        found[name].add(node.id)
    return found


@pytest.fixture(scope="module")
def before(file: Path) -> dict[str, set[str]]:
    """Keys before any edit."""
    return keys(built(file))


def changed(before: dict[str, set[str]], after: dict[str, set[str]]) -> set[str]:
    """Methods with other keys; all of one change, or none."""
    assert before.keys() == after.keys()
    assert all(before[m] == after[m] or before[m].isdisjoint(after[m]) for m in before)
    return {m for m in before if before[m] != after[m]}


def test_every_kind_is_in_the_experiment() -> None:
    assert {*LAYERS_HEADS.kinds()} - {"mine"} == HEADS.keys() - {"mine"}
    assert {*PAIR_LOSSES.kinds()} == {*LOSSES}


@pytest.mark.parametrize("name", short(sorted({*HEADS} - {"mine"}), "siamese"))
def test_an_edit_of_a_head_changes_its_own_keys(
    file: Path, before: dict[str, set[str]], edit: Callable[[type], None], name: str
) -> None:
    edit(LAYERS_HEADS.kinds()[name])
    own = {name}
    if name == "siamese":
        own |= {"mine"}  # derived from it
    if name.startswith("unified"):
        own |= {ON_HEADS}  # made from it
    if name == "cosine_mlp":
        own |= {ON_HEADS, *(f"by {loss}" for loss in LOSSES)}
    assert changed(before, keys(built(file))) == own


@pytest.mark.parametrize("name", short(LOSSES, "l1"))
def test_an_edit_of_a_loss_changes_the_keys_of_what_is_trained_with_it(
    file: Path, before: dict[str, set[str]], edit: Callable[[type], None], name: str
) -> None:
    edit(PAIR_LOSSES.kinds()[name])
    own = {f"by {name}"}
    own |= {ON_HEADS} if name == "l1" else {*HEADS, ON_HEADS} if name == "mse" else set()
    assert changed(before, keys(built(file))) == own


def test_an_edit_of_what_heads_build_changes_their_keys(
    file: Path, before: dict[str, set[str]], edit: Callable[[type], None]
) -> None:
    edit(CosineMlp)
    own = {"cosine_mlp", ON_HEADS, *(f"by {loss}" for loss in LOSSES)}
    assert changed(before, keys(built(file))) == own


def test_an_edited_value_of_a_plug_in_head_changes_its_keys(
    file: Path, files: dict[str, str], before: dict[str, set[str]]
) -> None:
    plugin = Path(files["mine"])
    source = plugin.read_text()
    plugin.write_text(source.replace("SCALE = 1.0", "SCALE = 0.2"))
    try:
        after = keys(built(file))
    finally:
        plugin.write_text(source)
    assert changed(before, after) == {"mine"}
    # A worker that has no such file is handed it.
    fits = built(file).fits
    assert {name for (name, _, _), node in fits.items() if node.plugins} == {"mine"}
