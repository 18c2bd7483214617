"""Probes that look inside a backbone, as part of an experiment: what runs, what is loaded, what is drawn."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows.pipeline import run_serially
from permafrost.stages.extraction import backbone as loading
from permafrost.stages.extraction import unembedding as unembedding_module
from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.probes import ProbeCurves
from permafrost.stages.sensitivity import SensitivityProfile
from permafrost.stages.token_prediction import LensScores, NextTokenScores
from permafrost.storage.errors import InputError
from tests.flows.experiments import write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import WORDS
from tests.stages.token_prediction.causal_models import save_causal


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(3)
    found = {"llama": str(save_causal("llama", folder / "llama"))}
    for split, n in (("train", 12), ("dev", 4), ("test", 6)):
        texts = [" ".join(rng.choices(WORDS[:30], k=9)) for _ in range(n)]
        found[split] = str(folder / f"{split}.parquet")
        pq.write_table(pa.table({"text": texts}), found[split])
    return found


def experiment(files: dict[str, str]) -> dict[str, Any]:
    few = {"n_texts": 3, "min_words": 4}
    return {
        "name": "inside",
        "backbone": {"source": files["llama"]},
        "recipes": {"htp": "htp:block=tokens,size=8"},
        "tasks": {
            "texts": {
                "kind": "files",
                "files": {split: files[split] for split in ("train", "dev", "test")},
                "task": {"kind": "unlabelled"},
            },
            "pairs": {
                "kind": "dilution",
                "n_words": 12,
                "gap": 1,
                "ratio": 0.2,
                "seed": 1,
                "n_train": 8,
                "n_dev": 4,
                "n_test": 4,
            },
        },
        "methods": {"length": {"kind": "length"}},
        "probes": {
            "next token": {
                "kind": "next_token",
                "tasks": ["texts"],
                "methods": {
                    "hidden": {"layers": "0,final", "max_epochs": 1, "n_tokens": 40},
                    "own": {"predictor": "own", "n_tokens": 40},
                    "frequencies": {"predictor": "frequencies", "n_tokens": 40},
                },
            },
            "lens": {
                "kind": "logit_lens",
                "tasks": ["texts"],
                "methods": {
                    "hidden states": {**few, "offsets": [1, 2]},
                    "AlignedWVA": {**few, "offsets": [1, 2], "vector": "aligned_wva"},
                },
            },
            "sensitivity": {
                "kind": "sensitivity",
                "tasks": ["texts"],
                "methods": {
                    "plain": {**few, "n_directions": 2, "n_bins": 3},
                    "HTP": {**few, "n_directions": 2, "n_bins": 3, "recipe": "htp"},
                },
            },
            "bound": {
                "kind": "path_bound",
                "tasks": ["texts"],
                "methods": {"HTP": {**few, "n_texts": 1, "blocks": [1, 2], "recipe": "htp"}},
            },
            "map": {
                "kind": "attention_map",
                "tasks": ["texts"],
                "methods": {"plain": {"min_words": 4}, "HTP": {"min_words": 4, "recipe": "htp"}},
            },
        },
        "report": {
            "title": "Inside",
            "claims": [
                {
                    "kind": "curve",
                    "says": "the bound holds",
                    "probe": "bound",
                    "higher": 1.0001,
                    "lower": {"method": "HTP", "measure": "mean: largest share of the bound"},
                }
            ],
        },
        "runtime": {"workers": 2, "device": "cpu", "extract": {"device": "cpu"}},
    }


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backbones and unembeddings that are loaded, in order."""
    found: list[str] = []

    def counted(files: Any, dtype: str, device: str) -> Backbone:
        found.append(dtype)
        return load_backbone(files, dtype, device)

    real = unembedding_module.weight_files

    def counted_files(folder: Path) -> list[str]:
        found.append("unembedding")
        return real(folder)

    monkeypatch.setattr(loading, "load_backbone", counted)
    monkeypatch.setattr(unembedding_module, "weight_files", counted_files)
    return found


@pytest.mark.deep
@pytest.mark.drawn
def test_probes_run_once_and_a_second_run_loads_nothing(
    files: dict[str, str], tmp_path: Path, loads: list[str]
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(files))
    home = tmp_path / "home"
    first = run_serially(path, home)
    expected = {"corpus": 2, "extract": 1, "control": 1, "probe": 10, "report": 1}
    assert first.computed == expected
    # One backbone for the extraction and every probe that runs one; the rest reads one matrix, and before
    # anything runs the names of the checkpoint's tensors.
    assert sorted(loads) == ["float32", *["unembedding"] * 5 * 2]
    dag = look(path, home)
    assert set(dag.stores) == {"default"}, "nothing is stored under htp"
    folders = {
        (probe, curve): dag.artifacts.open(node.spec.ref)
        for (probe, curve, _), node in dag.nodes.probes.items()
    }
    assert len(NextTokenScores.load(folders["next token", "hidden"]).table) == 2
    assert len(LensScores.load(folders["lens", "AlignedWVA"]).table) == 6
    assert len(SensitivityProfile.load(folders["sensitivity", "HTP"]).profile) == 12
    drawn = pq.read_table(first.report.with_name("probes.parquet")).to_pylist()
    for (probe, curve), folder in folders.items():
        points = ProbeCurves.load(folder).points
        mine = [r for r in drawn if (r["probe"], r["method"]) == (probe, curve)]
        assert [(r["measure"], r["x"], r["value"]) for r in mine] == [
            (p.measure, p.x, p.value) for p in points
        ]
    pictures = {p.name for p in (first.report.parent / "figures").glob("probe_*.png")}
    assert pictures == {
        "probe_1_next_token.png",
        "probe_2_logit_lens.png",
        "probe_3_sensitivity.png",
        "probe_4_path_bound.png",
        "probe_5_attention_map.png",
    }
    assert (first.report.parent / "figures" / "attention_map_1.png").exists()
    page = first.report.read_text(encoding="utf-8")
    assert "the backbone's own unembedding" in page.replace("&#39;", "'")
    assert 'id="attention-maps"' in page
    claims = json.loads(first.report.with_name("summary.json").read_text())["claims"]
    assert [c["outcome"] for c in claims] == ["holds"]
    assert len(claims[0]["comparisons"]) == 2
    loads.clear()
    again = run_serially(path, home)
    assert not again.computed
    assert loads == []
    changed = run_serially(path, home, ["probes.sensitivity.methods.HTP.residual=2.0"])
    assert changed.computed == {"probe": 1, "report": 1}
    assert loads == ["float32"]


@pytest.mark.deep
def test_what_a_probe_is_made_of_is_in_its_key(files: dict[str, str], tmp_path: Path) -> None:
    content = experiment(files)
    path = write(tmp_path / "experiment.yaml", content)

    def keys(overrides: list[str]) -> dict[tuple[str, str, str], str]:
        dag = look(path, tmp_path / "home", overrides)
        return {name: str(node.spec.ref) for name, node in dag.nodes.probes.items()}

    before = keys([])
    lens, sensitivity = ("lens", "hidden states", "texts"), ("sensitivity", "plain", "texts")
    for override, changed in {
        "backbone.max_length=50": set(before),
        "backbone.dtype=bfloat16": {k for k in before if k[0] in ("next token", "lens")},
        "recipe=plain:bos=omit": {k for k in before if k[1] != "HTP"},
        "recipes.htp=htp:block=tokens,size=4": {k for k in before if k[1] == "HTP"},
        "probes.bound.methods.HTP.max_tokens=9": {("bound", "HTP", "texts")},
        "probes.map.methods.plain.blocks=[2]": {("map", "plain", "texts")},
        "probes.lens.methods.hidden states.cutoff=10": {lens},
        "probes.sensitivity.methods.plain.layer=2": {sensitivity},
        "runtime.device=auto": set(),
    }.items():
        after = keys([override])
        assert {name for name in before if after[name] != before[name]} == changed, override
    assert not (tmp_path / "home").exists()


@pytest.mark.deep
def test_gradients_are_in_float32_whatever_the_backbone_is_run_in(
    files: dict[str, str], tmp_path: Path, loads: list[str]
) -> None:
    content = experiment(files)
    content["backbone"]["dtype"] = "bfloat16"
    content["capture"] = "hidden=1@mean"
    content["probes"] = {"sensitivity": content["probes"]["sensitivity"]}
    del content["probes"]["sensitivity"]["methods"]["HTP"], content["report"]["claims"]
    path = write(tmp_path / "experiment.yaml", content)
    found = run_serially(path, tmp_path / "home")
    assert found.computed["probe"] == 1
    assert loads == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        (
            {"kind": "sensitivity", "methods": {"x": {"recipe": "no"}}},
            "probes.p reads the recipe 'no'; there are default, htp",
        ),
        (
            {"kind": "logit_lens", "methods": {"x": {}}, "recipe": "three"},
            "'three' is an ensemble of 2 prompts",
        ),
        ({"kind": "logit_lens", "methods": {"x": {"vector": "keys"}}}, "vector"),
        ({"kind": "next_token", "methods": {"x": {"predictor": "none"}}}, "frequencies"),
        ({"kind": "next_token", "methods": {"x": {"layers": "9"}}}, "hidden=9"),
    ],
)
def test_wrong_probes_say_what_is_wrong(
    files: dict[str, str], tmp_path: Path, probe: dict[str, Any], says: str
) -> None:
    content = experiment(files)
    if probe.get("recipe") == "three":
        content["recipes"]["three"] = {"kind": "meta_eol", "prompts": ["A {text}", "B {text}"]}
    content["capture"] = "hidden=1@mean"
    content["probes"] = {"p": {"tasks": ["texts"], **probe}}
    del content["report"]["claims"]
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError) as caught:
        _ = look(path, tmp_path / "home").nodes
    assert says in str(caught.value)
