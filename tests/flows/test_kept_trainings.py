"""A training whose result could not be published is not done once more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.stages.fit.trainer import Step, Trainer
from permafrost.storage import artifacts
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import DiskFullError, PermafrostError
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import run_serially


def test_a_training_that_could_not_be_published_is_kept_until_it_is(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tiny_experiment(tiny_bert)
    document["methods"] = {"mean": document["methods"]["mean"]}
    document["tasks"] = {"ratio 0.2": document["tasks"]["ratio 0.2"]}
    document |= {"seeds": [0], "report": {"title": "One head"}}
    path, home = tmp_path / "one.yaml", tmp_path / "home"
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setattr("permafrost.flows.methods.head.CHECKPOINT_EVERY_S", 0.0)
    steps, taken = Trainer.steps, list[Step]()

    def noted(self: Trainer[Any, Any], epoch: int, n_done: int = 0) -> Iterator[Step]:
        for step in steps(self, epoch, n_done):
            taken.append(step)
            yield step

    monkeypatch.setattr(Trainer, "steps", noted)
    rename = artifacts._rename

    def full(draft: Path, target: Path) -> None:
        if target.parent.name == "fit":
            raise DiskFullError("there is no room")
        rename(draft, target)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "_rename", full)
        with pytest.raises(PermafrostError, match="there is no room"):
            run_serially(path, home)
    assert len(taken) == 6, "two epochs of 24 texts"
    assert ArtifactStore(home).refs("fit") == []
    run_serially(path, home)
    assert len(taken) == 6
    assert len(ArtifactStore(home).refs("fit")) == 1
    assert not list((home / "artifacts" / "fit").glob(".draft-*"))
