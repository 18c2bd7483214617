"""A fine-tuning that waits after some steps, to be killed: folder of the backbone, checkpoint, steps, what
is trained."""

import sys
from pathlib import Path

from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone, load_backbone
from permafrost.stages.finetune.train import finetune
from permafrost.storage.progress import SilentProgress
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs


class Waiting(SilentProgress):
    """Says so after some steps, and waits for ever."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps

    def advance(self, amount: int | float, note: str = "") -> None:
        self.n_steps -= int(amount)
        if self.n_steps < 0:
            sys.stdout.write("begun\n")
            sys.stdout.flush()
            sys.stdin.read()


if __name__ == "__main__":
    files = find_backbone(BackboneConfig(source=sys.argv[1]))
    data = data_of(pairs(), load_backbone(files, "float32", "cpu"))
    config = config_of(data.corpus, {"kind": "gt2vec"}, train=sys.argv[4])
    finetune(config, data, Waiting(int(sys.argv[3])), checkpoint=Path(sys.argv[2]))
