"""What an adapted backbone has learnt from is told where it is evaluated, and one that is gone is not
replaced by its base."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.nodes.extraction import Extract
from permafrost.flows.pipeline import run_serially
from permafrost.storage.durable import read_json
from permafrost.storage.errors import PermafrostError
from tests.flows.experiments import pairs, rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.test_adapted_experiment import OPTIM, experiment
from tests.flows.test_adapted_experiment import data as data

pytestmark = pytest.mark.deep


def test_texts_that_tuned_a_backbone_are_counted_for_all_that_read_it(
    data: Path, tmp_path: Path
) -> None:
    content = experiment(data)
    (tmp_path / "sts").mkdir()
    shutil.copy(data / "train.parquet", tmp_path / "sts" / "test.parquet")
    others = {
        split: str(pairs(tmp_path / f"{split}.parquet", 16, 100 + seed))
        for seed, split in enumerate(("train", "dev", "test"))
    }
    content["tasks"]["others"] = content["tasks"]["pairs"] | {"files": others}
    content["methods"] |= {
        "on tuned": content["methods"]["on tuned"]
        | {"head": {"kind": "scorer", "hidden": 4}, "optim": dict(OPTIM), "tasks": ["others"]},
        "base": {"kind": "embed", "layers": "3"},
        "LoRA": content["methods"]["LoRA"] | {"tasks": ["pairs"]},
    }
    columns = {"text": "a", "text_pair": "b", "label": "score"}
    learnt = {"kind": "local", "type": "sts", "path": str(tmp_path / "sts"), **columns}
    content["evaluations"] = {
        "own": {
            "tasks": {"seen": learnt},
            "methods": ["LoRA", "mean of tuned", "base"],
            "fitted_on": "pairs",
        },
        "other": {
            "tasks": {"seen too": learnt},
            "methods": ["on tuned"],
            "fitted_on": "others",
        },
    }
    path, home, result = run_in(tmp_path, content)
    dag = look(path, home)
    counts = {
        method: read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")["texts_in_train"]
        for (method, _, _), node in dag.nodes.evaluations.items()
    }
    n = len(dag.corpus("seen · text of evaluation").texts)
    every = {"text": {"n_texts": n, "n_in_train": n}}
    assert counts == {"LoRA": every, "mean of tuned": every, "on tuned": every, "base": None}
    shown = result.report.read_text(encoding="utf-8")
    assert f"seen: {n} of {n} texts; seen too: {n} of {n} texts." in shown


def test_a_backbone_that_is_removed_is_not_replaced_by_its_base(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = experiment(data) | {"evaluations": {}}
    del content["methods"]["base"], content["methods"]["on tuned"]
    content["methods"]["mean of base"] = {"kind": "embed", "layers": "3"}
    path = write(tmp_path / "experiment.yaml", content)
    expected = {r["method"]: r["test"] for r in rows_of(run_serially(path, tmp_path / "whole"))}
    assert expected["mean of tuned"] != expected["mean of base"]
    home, run = tmp_path / "home", Extract.run

    def removed(*given: Any) -> None:
        if "tuned" in given[0].label:
            shutil.rmtree(home / "artifacts" / "adapt")
        run(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Extract, "run", removed)
        with pytest.raises(
            PermafrostError, match=r"the adapted backbone that .* was removed since"
        ):
            run_serially(path, home)
    again = run_serially(path, home)
    assert {r["method"]: r["test"] for r in rows_of(again)} == expected


def test_a_name_that_evaluations_give_to_another_backbone_is_refused(
    data: Path, tmp_path: Path
) -> None:
    content = experiment(data) | {"seeds": [0, 1]}
    name = "LoRA · pairs · seed 1"
    content["methods"]["other"] = content["methods"]["LoRA"] | {"train": {"kind": "lora", "r": 4}}
    content["methods"]["mean of tuned"]["backbone"] = name
    del content["methods"]["on tuned"]
    content["evaluations"]["mteb"]["methods"] = ["LoRA"]
    content["adapted"] = {name: {"method": "other", "task": "pairs"}}
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(
        PermafrostError,
        match=rf"'{name}' for what 'other' tunes .* that of 'LoRA' so, .* rename it",
    ):
        run_serially(path, tmp_path / "home")
    # Of the same backbone it is no other name.
    content["adapted"] = {name: {"method": "LoRA", "task": "pairs", "seed": 1}}
    del content["methods"]["other"]
    result = run_serially(write(path, content), tmp_path / "home")
    assert result.computed["adapt"] == 2
