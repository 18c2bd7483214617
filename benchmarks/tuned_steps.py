"""One row of `benchmarks.tuning` in a process of its own: training steps through a random backbone.

What is trained goes through the trainers of the project itself: `HeadTrainee` on stored states,
`TunedHeadTrainee` on a backbone.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.backbone_runs import QUIET, WORDS
from benchmarks.measuring import own_bytes, watched_memory
from permafrost.flows.engine.late_imports import import_late_libraries
from permafrost.stages.extraction.backbone import Backbone, BackboneConfig, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.stages.finetune.cached_below import CachedBelow, forget_below
from permafrost.stages.finetune.entering import entering_array
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head import TunedHeadTrainee
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig
from permafrost.stages.fit import FitConfig, FitData
from permafrost.stages.fit.models import TaskFacts, build_model
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import source_of
from permafrost.stages.fit.splits import splits
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.fit.training import facts_of
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.keys import text_digest
from permafrost.storage.readers import FeatureReader, open_reader

READOUT = "readout"
"""As a head: the last token of a decoder, the first of an encoder, as GLOT reads tuned backbones."""
MLP = "MLP"
"""GLOT with linear layers in the place of its graph network (tables 15 and 17)."""
EXTRACTION, INFERENCE = "extraction", "inference"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    head: str
    train: Mapping[str, Any] | None
    """As in experiments; None for a head on stored states."""
    from_cache: str = "GLOT, cached"
    """The row that reads the cache where this one runs what lies below."""

    @property
    def runs_below(self) -> bool:
        """Whether its cost grows with the depth of the backbone."""
        return self.train is not None and self.train.get("below") != "cached"


_TOP = {"kind": "last_blocks", "n": 1}
_LORA = {"kind": "lora", "r": 64, "alpha": 64, "dropout": 0.1}
ROWS: dict[str, Row] = {
    "mean, cached": Row("mean", None),
    "max, cached": Row("max", None),
    "scorer, cached": Row("scorer", None),
    "MLP, cached": Row(MLP, None),
    "GLOT, cached": Row("glot", None),
    "GLOT, on the fly": Row("glot", {"kind": "probe"}),
    "GLOT and last block, cached": Row(
        "glot", {**_TOP, "below": "cached"}, "GLOT and last block, cached"
    ),
    "GLOT and last block, live": Row("glot", _TOP, "GLOT and last block, cached"),
    "LoRA": Row(READOUT, _LORA),
    "full": Row(READOUT, {"kind": "full"}),
}
HEADS = {"readout": READOUT, "mean": "mean", "max": "max", "scorer": "scorer", "GLOT": "glot"}
"""GLOT's table 16. The paper's AdaPool is our scorer."""


@dataclass(frozen=True)
class Spec:
    """What a process measures."""

    folder: str
    """Holds the model, and the home that its states are stored in."""
    row: str
    """One of ROWS, EXTRACTION or INFERENCE."""
    batch: int
    length: int
    """Tokens of every text."""
    n_steps: int
    """Counted ones; one more goes before them."""
    device: str

    @property
    def n_texts(self) -> int:
        """A batch to train on, and two texts of dev, which are not used."""
        return self.batch + 2


@dataclass(frozen=True)
class Taken:
    """What the steps of a row took."""

    seconds: float
    """A step, the median."""
    peak: int
    """Bytes at most during the steps, beyond the process's own; on a GPU what was allocated."""
    n_head: int
    n_backbone: int
    """Trained parameters."""
    n_block: int
    """Parameters of one block, trained or not."""


class Clock:
    """Processor seconds of this thread, without that which samples the memory; on a GPU the wall's."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device.startswith("cuda")

    def __call__(self) -> float:
        """Now."""
        if self._is_cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()


@dataclass
class Texts:
    """Texts of one length, and the backbone that reads them."""

    spec: Spec
    target: ExtractTarget
    texts: list[str]

    @classmethod
    def of(cls, spec: Spec) -> "Texts":
        """The same in every process."""
        rng = np.random.default_rng(0)
        # More words than tokens are read of them.
        words = rng.integers(0, len(WORDS), (spec.n_texts, spec.length))
        texts = [" ".join(WORDS[i] for i in row) for row in words]
        source = BackboneConfig(source=str(Path(spec.folder) / "model"), max_length=spec.length)
        named = ExtractConfig(backbone=source, capture=parse_capture("hidden=0"))
        n_blocks = resolve_target(named).sizes.n_layers
        capture = parse_capture(f"hidden={n_blocks - 1}-{n_blocks}@tokens")
        target = resolve_target(ExtractConfig(backbone=source, capture=capture))
        return cls(spec, target, texts)

    @property
    def array(self) -> str:
        """What the heads read: what the last block makes."""
        return f"hidden/{self.target.sizes.n_layers}"

    @property
    def digests(self) -> list[str]:
        """Of the texts."""
        return [text_digest(text) for text in self.texts]

    def load(self) -> Backbone:
        """With its weights in memory: where they were mapped from their file, no count would see them."""
        backbone = load_backbone(self.target.files, "float32", self.spec.device)
        for weight in backbone.model.parameters():
            weight.data = weight.data.clone()
        return backbone

    def stored(self, array: str, tokens: Any = "span") -> FeatureReader:
        """What an extraction has put into the home."""
        folder = store_folder(Path(self.spec.folder) / "home", self.target.identity.store_id)
        store = FeatureStore.open(folder)
        return open_reader(store, array, self.digests, budget_bytes=1 << 30, tokens=tokens)

    def live(self, backbone: Backbone, below: CachedBelow | None = None) -> LiveReader:
        """Through the backbone."""
        target = self.target
        encoded = encode(target.recipe, target.tokenizer, self.texts, target.max_length)
        assert (encoded.token_ids.lengths == self.spec.length).all()
        return LiveReader(backbone, target.recipe, encoded, self.array, below)

    def head(self, name: str) -> dict[str, Any]:
        """By its name in ROWS and HEADS."""
        own = "last" if self.target.sizes.is_decoder else "first"
        special = {READOUT: {"kind": own}, MLP: {"kind": "glot", "conv": "linear"}}
        return special.get(name, {"kind": name})

    def data(self, reader: Any) -> FitData:
        """Two classes that alternate."""
        n = self.spec.n_texts
        examples = pa.table(
            {
                "split": ["train"] * (n - 2) + ["dev"] * 2,
                "text": pa.array(range(n), pa.int64()),
                "text_pair": pa.array([None] * n, pa.int64()),
                "label": [float(i % 2) for i in range(n)],
            }
        )
        return FitData({self.array: reader}, examples, ("no", "yes"), self.digests)


def measure(spec: Spec) -> dict[str, Any]:
    """What a process prints."""
    texts = Texts.of(spec)
    if spec.row == EXTRACTION:
        return {"seconds": _extraction(texts)}
    if spec.row == INFERENCE:
        return _inference(texts)
    return asdict(_training(texts, ROWS[spec.row]))


def _extraction(texts: Texts) -> float:
    """Seconds for a batch, its way to the disk included, the loading of the model not."""
    spec, backbone = texts.spec, texts.load()
    runtime = ExtractRuntime(device=spec.device)
    # Of all threads: one writes.
    clock = time.perf_counter if spec.device.startswith("cuda") else time.process_time
    begin = clock()
    home = Path(spec.folder) / "home"
    extract(
        *(texts.target, home, texts.texts, texts.digests, runtime, QUIET),
        load=lambda: backbone,
    )
    return (clock() - begin) * spec.batch / spec.n_texts


def _training(texts: Texts, row: Row) -> Taken:
    spec, device = texts.spec, torch.device(texts.spec.device)
    # 70 MB of libraries are no part of a step, nor of what a GPU would hold.
    import_late_libraries(["finetune"])
    before = own_bytes()
    trainee, backbone = _trainee(texts, row, device)
    trainer = Trainer(trainee, trainee.plan)
    times = [0.0]
    clock, peaks = Clock(spec.device), list[int]()
    loaded = own_bytes()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = clock()
    with watched_memory(peaks):
        # An epoch is one step.
        for epoch in range(1, spec.n_steps + 2):
            for _ in trainer.steps(epoch):
                pass
            times.append(clock() - begin)
    peak = peaks[0] + loaded - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    seconds = [b - a for a, b in pairwise(times)][1:]
    tuned = getattr(trainee.model, "tuned", None)
    n_backbone = 0 if tuned is None else sum(p.numel() for p in tuned.parameters())
    n_all = sum(p.numel() for p in trainee.model.parameters())
    n_block = 0 if backbone is None else _parameters(backbone)
    return Taken(float(np.median(seconds)), peak, n_all - n_backbone, n_backbone, n_block)


def _parameters(backbone: Backbone) -> int:
    return sum(p.numel() for p in backbone.family.block_list(backbone.model)[-1].parameters())


def _trainee(texts: Texts, row: Row, device: torch.device) -> tuple[Any, Backbone | None]:
    spec = texts.spec
    # The same for all: what the optimiser does is part of a step.
    limits = {
        "optimizer": "adamw",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "batch_size": spec.batch,
        "max_epochs": spec.n_steps + 1,
        "patience": None,
    }
    fit = {"head": texts.head(row.head), "layer": texts.array, "seed": 0}
    if row.train is None:
        reader = texts.stored(texts.array)
        data = texts.data(reader)
        train, dev = splits(0, "true", data)
        config = FitConfig.model_validate({**fit, "optim": limits})
        facts = facts_of(data, train)
        sources = source_of(train, reader), source_of(dev, reader)
        return HeadTrainee(config, facts, *sources, device), None
    tuned = TunedHeadConfig.model_validate({"fit": fit, "train": row.train, "optim": limits})
    backbone, below = texts.load(), None
    n_above = tuned.train.n_above_cache
    if n_above is not None:
        array = entering_array(n_above, texts.target.sizes)
        below = CachedBelow(n_above, texts.stored(array, tokens="all"))
        forget_below(backbone, n_above)
    live = texts.live(backbone, below)
    data = texts.data(live)
    train, dev = splits(0, "true", data)
    trainee = TunedHeadTrainee(tuned, facts_of(data, train), (train, dev), live, device)
    return trainee, backbone


@torch.no_grad()
def _inference(texts: Texts) -> dict[str, float]:
    """Seconds of a batch: the backbone's pass, and each head behind it.

    Bytes at most: of a pass through both, weights included, and of the head behind it, beyond its weights and
    what it reads.
    """
    spec, batch = texts.spec, np.arange(texts.spec.batch)
    import_late_libraries(["finetune"])
    before = _held(spec.device)
    live = texts.live(texts.load())
    seconds = _median(Clock(spec.device), lambda: live.rows(batch), spec.n_steps)
    found = {"seconds": seconds}
    for name in HEADS:
        found[peak_of(name)] = _peak_of_both(texts, live, name) - before
    rows = live.rows(batch)
    for name in HEADS:
        found[name], found[own_peak_of(name)] = _alone(texts, live, name, rows)
    return found


def _peak_of_both(texts: Texts, live: LiveReader, name: str) -> int:
    model, batch = _head_behind(texts, live, name), np.arange(texts.spec.batch)
    return _most(texts.spec.device, lambda: model(*live.rows(batch)))


def _alone(
    texts: Texts, live: LiveReader, name: str, rows: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, int]:
    """Seconds and bytes of a head behind a backbone that has run."""
    model, spec = _head_behind(texts, live, name), texts.spec
    clock, n = Clock(spec.device), max(spec.n_steps, 5)

    def run() -> object:
        return model(*rows)

    run()
    seconds, held = _median(clock, run, n), _held(spec.device)
    return seconds, _most(spec.device, lambda: _median(clock, run, n)) - held


def peak_of(head: str) -> str:
    """Under which name stand the bytes of a pass through the backbone and a head."""
    return f"{head}: peak"


def own_peak_of(head: str) -> str:
    """Under which name stand the bytes of a head alone."""
    return f"{head}: own peak"


def _head_behind(texts: Texts, live: LiveReader, name: str) -> torch.nn.Module:
    fields = {"head": texts.head(HEADS[name]), "layer": texts.array, "seed": 0}
    facts = TaskFacts("classification", ("no", "yes"))
    model = build_model(FitConfig.model_validate(fields), facts, live.width)
    return model.to(live.backbone.device).eval()


def _held(device: str) -> int:
    """Bytes: of the process, or allocated on the GPU."""
    return torch.cuda.memory_allocated() if device.startswith("cuda") else own_bytes()


def _most(device: str, call: Callable[[], object]) -> int:
    """The largest of `_held` during a call."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated()
    peaks, held = list[int](), own_bytes()
    with watched_memory(peaks):
        call()
    return held + peaks[0]


def _median(clock: Clock, call: Callable[[], object], n: int) -> float:
    times: list[float] = []
    for _ in range(n):
        begin = clock()
        call()
        times.append(clock() - begin)
    return float(np.median(times))
