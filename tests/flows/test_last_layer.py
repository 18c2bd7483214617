"""`hidden/last`, `hidden/-2`, `layers: -2` and `layers: htp` are numbers before any key is made."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.target import resolve_backbone
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment
from tests.stages.extraction.tiny_models import save_model
from tests.stages.mteb_evaluation.small_tasks import write_task

OPTIM = {"max_epochs": 1}


def keys_of(backbone: Path, last: str) -> dict[str, str]:
    content: dict[str, Any] = tiny_experiment(backbone)
    layer = f"hidden/{last}"
    content["capture"] = (
        f"hidden=1,{last}@tokens,hidden={last}@mean,values={last if last == 'last' else 3}@tokens"
    )
    content["methods"] = {
        "mean": {"kind": "head", "head": {"kind": "mean"}, "layer": layer, "optim": OPTIM},
        "grid": {
            "kind": "head",
            "head": {"kind": "mean"},
            "layer": "hidden/1",
            "grid": {"layer": ["hidden/1", layer]},
        },
        "prompted": {
            "kind": "head",
            "head": {"kind": "mean"},
            "layer": "pooled/hidden_readout/" + ("-2" if last == "last" else "2"),
            "recipe": "prompt",
            "optim": OPTIM,
        },
        "tuned": {"kind": "finetuned", "head": {"kind": "mean"}, "layer": layer, "train": "probe"},
    }
    content["recipes"] = {"prompt": "template:template=the ice is {text} !"}
    graph = build_graph(load_experiment(content))
    return {node.label: node.id for node in graph.graph}


@pytest.mark.parametrize(("model_type", "named"), [("bert", "3"), ("llama", "final")])
def test_it_has_the_keys_of_the_array_it_stands_for(
    model_type: str, named: str, tmp_path: Path
) -> None:
    save_model(model_type, tmp_path / "backbone")
    asked, meant = (keys_of(tmp_path / "backbone", last) for last in ("last", named))
    assert asked == meant
    assert not [label for label in asked if "hidden/last" in label or "/-2" in label]


@pytest.mark.parametrize(
    ("model_type", "hidden"), [("bert", "hidden/3"), ("llama", "hidden/final")]
)
def test_a_capture_knows_it(model_type: str, hidden: str, tmp_path: Path) -> None:
    save_model(model_type, tmp_path / "backbone")
    sizes = resolve_backbone(
        BackboneConfig(source=str(tmp_path / "backbone")), "float32", "none"
    ).sizes
    found = parse_capture("hidden=last@tokens,values=last@mean,attention_rows=last").arrays(sizes)
    assert set(found) == {hidden, "pooled/values_mean/3", "attention_rows/3"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"methods": {"m": {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/last"}}},
            r"'m' reads hidden/final \(hidden/last is the same\), but the experiment captures only",
        ),
        (
            {"methods": {"m": {"kind": "linear", "layers": ["9"]}}},
            r"^methods\.m: hidden=9 was asked for",
        ),
        (
            {"pretrainings": {"p": {"task": "ratio 0.2", "latents": {"layers": "9"}}}},
            r"^pretrainings\.p: latents\.layers: hidden=9 was asked for",
        ),
    ],
)
def test_who_asks_for_a_layer_that_is_not_there_is_named(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    save_model("llama", tmp_path / "backbone")
    content = tiny_experiment(tmp_path / "backbone") | {"capture": "hidden=1@tokens"} | change
    with pytest.raises(InputError, match=says):
        build_graph(load_experiment(content))


def keys_of_layers(backbone: Path, minus_two: str, last_two: str) -> dict[str, str]:
    content: dict[str, Any] = tiny_experiment(backbone)
    content["capture"] = f"hidden={minus_two}@tokens"
    content["methods"] = {
        "mean": {"kind": "embed", "layers": minus_two},
        "linear": {"kind": "linear", "layers": [minus_two, last_two, "half"]},
    }
    sts = {"kind": "local", "type": "sts", "path": str(write_task(backbone.parent, "sts"))}
    content["evaluations"] = {"pairs": {"tasks": {"STS": sts}}}
    del content["report"]["x_axis"]
    graph = build_graph(load_experiment(content))
    return {node.label: node.id for node in graph.graph}


def test_blocks_from_the_end_have_the_keys_of_their_numbers(tmp_path: Path) -> None:
    save_model("llama", tmp_path / "backbone")
    counted, meant = (
        keys_of_layers(tmp_path / "backbone", *layers) for layers in (("-2", "-2,-1"), ("2", "2,3"))
    )
    assert counted == meant
    with pytest.raises(InputError, match="has 3 blocks, -3 to -1 from the end"):
        keys_of_layers(tmp_path / "backbone", "-4", "-1")
    method = {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/-4", "optim": OPTIM}
    with pytest.raises(InputError, match="has 3 blocks, -3 to -1 from the end"):
        build_graph(
            load_experiment(tiny_experiment(tmp_path / "backbone") | {"methods": {"mean": method}})
        )
