"""`hidden: match NAME` is the width with the parameters of that method's head, before any key is made."""

from pathlib import Path
from typing import Any

import pytest
import torch

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.heads import GlotHead, MlpHead
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment
from tests.stages.extraction.tiny_models import D_MODEL

SHARED = {"kind": "head", "layer": "hidden/last", "optim": {"max_epochs": 1}}
GLOT = {"kind": "glot", "hidden": 8, "n_convs": 2}


def graph(backbone: Path, hidden: Any, **methods: Any) -> ExperimentGraph:
    content = tiny_experiment(backbone) | {
        "capture": "hidden=last@tokens",
        "methods": {
            "GLOT": {**SHARED, "head": GLOT},
            "MLP": {**SHARED, "head": {"kind": "mlp", "hidden": hidden}},
            **methods,
        },
    }
    return build_graph(load_experiment(content))


def test_it_is_the_closest_width_and_has_the_key_of_its_number(tiny_bert: Path) -> None:
    nodes = graph(tiny_bert, "match GLOT")
    config: Any = nodes.fits["MLP", "ratio 0.2", 0].config
    hidden = config["head"]["hidden"]
    wanted = GlotHead.model_validate(GLOT).build(D_MODEL, torch.Generator()).n_parameters

    def off(width: int) -> int:
        return abs(MlpHead(hidden=width).build(D_MODEL, torch.Generator()).n_parameters - wanted)

    assert off(hidden) == min(map(off, range(1, 2 * hidden)))
    same = graph(tiny_bert, hidden)
    assert [n.id for n in nodes.graph] == [n.id for n in same.graph]
    assert nodes.fits["GLOT", "ratio 0.2", 0].id == same.fits["GLOT", "ratio 0.2", 0].id


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        ("match GLAT", "there is no method 'GLAT'; there are GLOT, MLP, words"),
        ("match words", "'words' has no head of a width of its own"),
        ("match MLP", "'MLP' has no head of a width of its own"),
    ],
)
def test_what_has_no_head_to_match_is_refused(tiny_bert: Path, hidden: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"methods\.MLP\.head\.hidden is '{hidden}', but .*{why}"):
        graph(tiny_bert, hidden, words={"kind": "bag_of_words"})


@pytest.mark.parametrize(
    "grid",
    [{"head.hidden": [8, "match GLOT"]}, {"head": [{"kind": "mlp", "hidden": "match GLOT"}]}],
)
def test_a_grid_has_no_width_to_match(tiny_bert: Path, grid: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"has the width 'match GLOT', and a grid has numbers only"
    ):
        graph(tiny_bert, 8, tried={**SHARED, "head": {"kind": "mlp", "hidden": 4}, "grid": grid})


def test_elsewhere_a_number_is_asked_for() -> None:
    with pytest.raises(InputError, match="'match GLOT', which names a method of an experiment"):
        MlpHead(hidden="match GLOT").build(4, torch.Generator())
