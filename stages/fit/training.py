"""Train heads on stored features and keep the best (candidate, epoch) on dev.

Source: GLOT, section 4.1 (Adam, constant rate, cross-entropy, argmax). We differ in the selection:
the released code reports the best epoch of the very set it selects on; here dev selects and test is
never read.

A fit depends on its config and data alone. Nothing is drawn from torch's global generator, so fits
may run side by side in threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stages.fit.batches import per_text, to_tensors
from stages.fit.config import FitConfig, OptimConfig
from stages.fit.data import FitData, Labelled
from stages.fit.metrics import evaluate
from stages.fit.trained import EpochRecord, FitResult
from stages.heads import Classifier, FirstHead, HeadConfig, Pooling, build_head
from storage.errors import InputError, PermafrostError
from storage.progress import Progress
from storage.ragged import Ragged
from storage.readers import FeatureReader, InMemoryReader


@dataclass(frozen=True)
class Source:
    """One split as a candidate sees it: features of each example, in order, and their classes."""

    reader: FeatureReader
    labels: np.ndarray


@dataclass(frozen=True)
class _Run:
    """The model of a candidate while it is trained."""

    pooling: Pooling
    classifier: Classifier
    optimizer: torch.optim.Optimizer

    def state(self) -> dict[str, Tensor]:
        """A copy of the parameters, named as in `LoadedHead`."""
        return {
            f"{name}.{key}": value.detach().cpu().clone()
            for name in ("pooling", "classifier")
            for key, value in getattr(self, name).state_dict().items()
        }


def _optimizer(config: OptimConfig, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    # Fused: one pass over each parameter instead of a dozen small operations per step.
    return kinds[config.optimizer](
        parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
    )


def start_run(config: FitConfig, d_in: int, n_classes: int, device: torch.device) -> _Run:
    """A fresh model of a candidate; the same seed gives the same weights on every device."""
    draw = torch.Generator().manual_seed(config.seed)
    pooling = build_head(config.head, d_in, draw)
    classifier = Classifier(pooling.d_out, n_classes, draw)
    pooling.to(device)
    classifier.to(device)
    return _Run(
        pooling,
        classifier,
        _optimizer(config.optim, [*pooling.parameters(), *classifier.parameters()]),
    )


def train_epoch(
    run: _Run, config: FitConfig, train: Source, epoch: int, device: torch.device
) -> Iterator[tuple[float, int]]:
    """One pass over train; yields the loss of each step and its number of texts."""
    batches = train.reader.shuffled(config.optim.batch_size, config.seed, epoch)
    for step, (picked, rows) in enumerate(batches):
        logits = run.classifier(run.pooling(*to_tensors(rows, device)))
        labels = torch.from_numpy(train.labels[picked]).to(device)
        loss = functional.cross_entropy(logits, labels)
        value = loss.item()
        if not np.isfinite(value):
            raise PermafrostError(
                f"the loss is {value} at epoch {epoch}, step {step} of the candidate "
                f"{config.model_dump_json(exclude={'grid'})} with optim.lr {config.optim.lr}; lower "
                "optim.lr, or check the features with 'permafrost verify'"
            )
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        yield value, len(picked)


def predict(run: _Run, reader: FeatureReader, batch_size: int, device: torch.device) -> np.ndarray:
    """The most probable class of every text, `[n]` int64."""
    logits = per_text(reader, batch_size, device, lambda t, o: run.classifier(run.pooling(t, o)))
    return logits.argmax(dim=1).numpy()


def pooled(head: HeadConfig, source: Source, batch_size: int, device: torch.device) -> Source:
    """The same split with every text replaced by its pooled vector, for heads without parameters."""
    pooling = build_head(head, source.reader.width, torch.Generator()).to(device)
    vectors = per_text(source.reader, batch_size, device, pooling).numpy()
    offsets = np.arange(len(vectors) + 1, dtype=np.int64)
    return Source(InMemoryReader(source.reader.array, Ragged(vectors, offsets)), source.labels)


def _shuffled(split: Labelled, seed: int, stream: int) -> Labelled:
    # A stream of its own, so that the permutation is not the one that orders the batches.
    order = np.random.default_rng([seed, 1 << 32, stream]).permutation(len(split))
    return replace(split, labels=split.labels[order])


def _splits(config: FitConfig, data: FitData) -> tuple[Labelled, Labelled]:
    train, dev = data.split("train"), data.split("dev")
    classes = np.unique(train.labels)
    if len(classes) < 2:
        raise InputError(
            f"all {len(train)} train examples have the label {data.label_names[int(classes[0])]!r}; "
            "there is nothing to learn, give examples of at least two classes"
        )
    if config.metric == "f1" and len(data.label_names) != 2:
        raise InputError(
            f"metric f1 is that of class 1 of two, but the corpus has {len(data.label_names)} classes; "
            "use accuracy or mcc"
        )
    if config.labels == "shuffled":
        return _shuffled(train, config.seed, 0), _shuffled(dev, config.seed, 1)
    return train, dev


def fit(config: FitConfig, data: FitData, progress: Progress, device: str = "cpu") -> FitResult:
    """Train every candidate, evaluate dev after every epoch, keep the best (candidate, epoch).

    Ties go to the first candidate and the earliest epoch. Poolings without parameters are applied
    once per layer and their classifier trained on the vectors, which gives the same result.

    Args:
        config: one head or a grid.
        data: features and examples; test is not read.
        progress: told about every step.
        device: where to compute, for example "cuda"; not part of the config because it may not
            change the result beyond rounding.

    Raises:
        InputError: no train or dev examples, one class only, unknown grid field, array not given.
        PermafrostError: the loss is not finite.
    """
    candidates = config.candidates()
    place = torch.device(device)
    splits: dict[tuple[int, str], tuple[Labelled, Labelled]] = {}
    steps = 0
    for candidate in candidates:
        data.reader(candidate.layer)
        seen = (candidate.seed, candidate.labels)
        if seen not in splits:
            splits[seen] = _splits(candidate, data)
        per_epoch = -(-len(splits[seen][0]) // candidate.optim.batch_size)
        steps += per_epoch * candidate.optim.max_epochs
    history: list[EpochRecord] = []
    best: tuple[EpochRecord, dict[str, Tensor]] | None = None
    progress.start(f"fit {config.head.kind}", steps, "steps")
    try:
        pools: dict[tuple[HeadConfig, str], tuple[Source, Source]] = {}
        for number, candidate in enumerate(candidates):
            train, dev = (
                Source(data.reader(candidate.layer).subset(split.texts), split.labels)
                for split in splits[candidate.seed, candidate.labels]
            )
            trained = candidate
            if candidate.head.kind in ("first", "mean", "max"):
                key = (candidate.head, candidate.layer)
                if key not in pools:
                    size = candidate.optim.batch_size
                    pools[key] = (
                        pooled(candidate.head, train, size, place),
                        pooled(candidate.head, dev, size, place),
                    )
                train, dev = (
                    replace(pool, labels=split.labels)
                    for pool, split in zip(pools[key], (train, dev), strict=True)
                )
                # A pooled text is a text of one token.
                trained = candidate.model_copy(update={"head": FirstHead()})
            run = start_run(trained, train.reader.width, len(data.label_names), place)
            for epoch in range(1, candidate.optim.max_epochs + 1):
                total = 0.0
                for loss, texts in train_epoch(run, trained, train, epoch, place):
                    total += loss * texts
                    progress.advance(1, f"loss {loss:.4f}")
                guesses = predict(run, dev.reader, candidate.optim.batch_size, place)
                score = evaluate(candidate.metric, dev.labels, guesses)
                record = EpochRecord(number, epoch, total / len(train.labels), score)
                history.append(record)
                if best is None or score > best[0].dev_metric:
                    best = record, run.state()
    finally:
        progress.finish()
    assert best is not None, "there is at least one candidate and one epoch"
    width = data.reader(candidates[best[0].candidate].layer).width
    return FitResult(config, candidates, best[0], tuple(history), width, data.label_names, best[1])
