"""A fine-tuning that is killed in the middle of an epoch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone, load_backbone
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.train import finetune
from permafrost.storage.progress import SilentProgress
from tests.crash import finetune_to_a_step
from tests.stages.extraction.tiny_models import save_model
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs


class Seen(SilentProgress):
    """Keeps what was done."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def advance(self, amount: int | float, note: str = "") -> None:
        self.steps.append(int(amount))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("n_steps", "train"),
    [
        (4, "lora"),
        pytest.param(1, "probe", marks=pytest.mark.night),
        pytest.param(4, "probe", marks=pytest.mark.night),
    ],
)
def test_a_killed_fine_tuning_goes_on_in_the_middle_of_its_epoch(
    tmp_path: Path, n_steps: int, train: str
) -> None:
    model, file = save_model("bert", tmp_path / "bert"), tmp_path / "fit.pt"
    script = finetune_to_a_step.__file__
    assert script is not None
    with subprocess.Popen(
        [sys.executable, script, str(model), str(file), str(n_steps), train],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL

    def data() -> FinetuneData:
        files = find_backbone(BackboneConfig(source=str(model)))
        return data_of(pairs(), load_backbone(files, "float32", "cpu"))

    progress, first = Seen(), data()
    config = config_of(first.corpus, {"kind": "gt2vec"}, train=train)
    again = finetune(config, first, progress, checkpoint=file)
    assert progress.steps[0] == n_steps, "of 3 steps an epoch, 6 in all"
    assert sum(progress.steps) == 6
    whole = finetune(config, data(), SilentProgress())
    assert all(torch.equal(again.state[k], whole.state[k]) for k in whole.state), "bitwise"
    assert (again.history, again.log, again.aligned) == (whole.history, whole.log, whole.aligned)
