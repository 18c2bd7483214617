"""Heads trained with their backbone: against cached heads, against whole passes, and through kills."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.finetune import by_length
from permafrost.stages.finetune.adapters import Adapters
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head import (
    TunedHeadResult,
    TunedHeadTrainee,
    checkpoint_on,
    finetune_head,
)
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, prepared
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.stages.finetune.tuning import TUNINGS as TUNINGS_OF_A_BACKBONE
from permafrost.stages.fit import FitConfig, FitData, FitResult, fit
from permafrost.stages.fit.splits import splits
from permafrost.stages.fit.training import facts_of
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, PermafrostError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import InMemoryReader
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.extraction.tiny_models import WORDS, each_family
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.stopping import Stopped, Stopping

pytestmark = pytest.mark.deep

Pairs = Callable[[str], Pair]
CPU = torch.device("cpu")
HEADS: dict[str, dict[str, Any]] = {
    "mean": {"kind": "mean"},
    "scorer": {"kind": "scorer"},
    "glot": {"kind": "glot", "hidden": 8},
}
TUNINGS: dict[str, dict[str, Any]] = {
    "probe": {"kind": "probe"},
    "lora": {"kind": "lora", "r": 2, "alpha": 4, "dropout": 0.3},
    "full": {"kind": "full"},
    "last_blocks": {"kind": "last_blocks", "n": 1},
}
OPTIM = {"lr": 0.01, "batch_size": 4, "max_epochs": 2, "patience": None}
TEXTS = [
    " ".join(["a", *WORDS[2 + i % 5 : 4 + i % 5 + i % 3], "and", WORDS[2 + (i * 7) % 12], "."])
    for i in range(20)
]


def live(backbone: Backbone, array: str = "hidden/2") -> LiveReader:
    return LiveReader(backbone, resolved(backbone, "plain"), encoded(backbone, texts=TEXTS), array)


def data_of(reader: LiveReader | InMemoryReader, task: str = "classification") -> FitData:
    n = len(TEXTS)
    pairs = None if task == "classification" else [(i * 3 + 1) % n for i in range(n)]
    labels = [i % 5 / 5 if task == "similarity" else float(i % 2) for i in range(n)]
    examples = pa.table(
        {
            "split": ["train"] * 12 + ["dev"] * 4 + ["test"] * 4,
            "text": pa.array(range(n), pa.int64()),
            "text_pair": pa.array(pairs or [None] * n, pa.int64()),
            "label": labels,
        }
    )
    names = () if task == "similarity" else ("no", "yes")
    digests = [f"{i:032x}" for i in range(n)]
    return FitData({reader.array: reader}, examples, names, digests, task)  # type: ignore[arg-type]


def config(
    train: str, head: str = "glot", optim: dict[str, Any] | None = None, **fit: Any
) -> TunedHeadConfig:
    fields = {"head": HEADS[head], "layer": "hidden/2", "seed": 3, **fit}
    return TunedHeadConfig.model_validate(
        {"fit": fields, "train": TUNINGS[train], "optim": {**OPTIM, **(optim or {})}}
    )


def tuned(backbone: Backbone, wanted: TunedHeadConfig, **others: Any) -> TunedHeadResult:
    reader = live(backbone, wanted.fit.layer)
    return finetune_head(wanted, data_of(reader), reader, SilentProgress(), **others)


def cached(backbone: Backbone, wanted: TunedHeadConfig, task: str = "classification") -> FitResult:
    """The same head on stored rows."""
    reader = live(backbone, wanted.fit.layer)
    _, rows = next(reader.in_order(len(TEXTS)))
    shared = ("optimizer", "weight_decay", "max_grad_norm")
    optim = {**OPTIM, **wanted.optim.model_dump(include=set(shared))}
    fields = FitConfig.model_validate({**wanted.fit.model_dump(), "optim": optim})
    return fit(fields, data_of(InMemoryReader(wanted.fit.layer, rows), task), SilentProgress())


@pytest.mark.few(5)
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("family", each_family(FAMILIES))
def test_live_rows_are_those_of_extraction(
    pair: Pairs, monkeypatch: pytest.MonkeyPatch, family: str, multiple: int
) -> None:
    """Also where passes are padded on, as in half precision."""
    monkeypatch.setattr(by_length, "tokens_of_a_kind", lambda _backbone: multiple)
    backbone = pair(family).backbone
    batch, recipe = encoded(backbone, texts=TEXTS), resolved(backbone, "plain")
    for array in ("hidden/0", "hidden/2", "values/2", "pooled/hidden_last/3"):
        stored = forward(backbone, batch, [array], recipe)[array].float()
        if not array.startswith("pooled"):
            stored = stored[torch.from_numpy(np.flatnonzero(batch.span.data))]
        reader = live(backbone, array)
        rows, offsets = reader.rows(np.arange(len(TEXTS)))
        assert close(rows, stored), array
        assert np.array_equal(np.diff(offsets.numpy()), reader.lengths)
        assert rows.shape[1] == reader.width


def test_live_batches_come_in_the_order_of_stored_ones(pair: Pairs) -> None:
    reader = live(pair("bert").backbone)
    _, rows = next(reader.in_order(len(TEXTS)))
    stored = InMemoryReader("hidden/2", rows).subset(np.array([5, 1, 1, 9]))
    again = reader.subset(np.array([5, 1, 1, 9]))
    for ours, theirs in zip(again.shuffled(2, 1, 4), stored.shuffled(2, 1, 4), strict=True):
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1].offsets, theirs[1].offsets)
        np.testing.assert_allclose(ours[1].data, theirs[1].data, rtol=0, atol=2e-5)


@pytest.mark.parametrize("task", ["classification", "pair_classification", "similarity"])
def test_a_head_on_a_frozen_backbone_is_the_cached_head(own: Own, task: str) -> None:
    loss = {"kind": "cosine_mse" if task == "similarity" else "cross_entropy"}
    metric = "spearman" if task == "similarity" else "accuracy"
    wanted = config("probe", loss=loss, metric=metric)
    backbone = own("llama")
    reader = live(backbone)
    found = finetune_head(wanted, data_of(reader, task), reader, SilentProgress())
    expected = cached(backbone, wanted, task)
    assert found.n_tuned == 0
    assert same(found.fit, expected)


@pytest.mark.few(2)
@pytest.mark.parametrize("train", ["lora", "full", "last_blocks"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_backbone_with_rate_zero_leaves_the_cached_head(
    own: Own, family: str, train: str
) -> None:
    # Clipping is of all gradients together, so a backbone's would make the head another one.
    without = config(train, optim={"backbone_lr": 0.0, "max_grad_norm": None})
    if train == "lora":
        without = without_dropout(without)
    expected, backbone = cached(own(family), without), own(family)
    before = frozen(backbone)
    found = tuned(backbone, without)
    assert found.n_tuned
    assert same(found.fit, expected)
    if train != "lora":
        assert all(torch.equal(p, before[n]) for n, p in frozen(backbone).items())


def without_dropout(wanted: TunedHeadConfig) -> TunedHeadConfig:
    return wanted.model_copy(update={"train": wanted.train.model_copy(update={"dropout": 0.0})})


def same(found: FitResult, expected: FitResult) -> bool:
    assert found.state.keys() == expected.state.keys()
    for name, value in expected.state.items():
        # A softmax does not depend on it, so that its gradient is rounding, which Adam makes a step of.
        if name != "pooling.readout.second.bias":
            torch.testing.assert_close(found.state[name], value, rtol=2e-3, atol=2e-4, msg=name)
    for ours, theirs in zip(found.log, expected.log, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    for ours, theirs in zip(found.history, expected.history, strict=True):
        assert ours.dev_metric == pytest.approx(theirs.dev_metric, abs=1e-3)
    return True


def frozen(backbone: Backbone) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in backbone.model.named_parameters()}


@pytest.mark.parametrize("task", ["classification", "pair_classification"])
def test_a_head_with_broken_weights_is_not_scored(own: Own, task: str) -> None:
    """Of pairs the classifier alone is broken: every text still has a vector of numbers."""
    reader = live(own("llama"))
    whole, examples = prepared(config("lora", head="mean"), data := data_of(reader, task))
    trained = TunedHeadTrainee(whole, facts_of(data, examples[0]), examples, reader, CPU)
    trained.model.eval()
    assert 0 <= trained.dev()[0] <= 1
    for name, weight in trained.model.head.named_parameters():
        if "classifier" in name:
            torch.nn.init.constant_(weight, torch.nan)
    with pytest.raises(PermafrostError, match=r"not finite.*lower optim\.lr"):
        trained.dev()


@pytest.mark.parametrize("train", ["lora", "full", "last_blocks"])
def test_what_is_trained_moves_and_nothing_else(own: Own, train: str) -> None:
    backbone = own("llama")
    before = frozen(backbone)
    found = tuned(backbone, config(train, optim={"backbone_lr": 0.01}))
    moved = {
        n
        for n, p in before.items()
        if n in (now := frozen(backbone)) and not torch.equal(p, now[n])
    }
    trained = {
        "lora": set[str](),
        "full": {n for n in before if not n.startswith(("layers.2", "norm"))},
        "last_blocks": set[str](),
    }[train]
    # Head and loss read hidden/2: blocks above it get no gradient, only decay.
    assert moved >= trained
    if train == "lora":
        assert not moved
        assert all(
            not p.requires_grad for n, p in backbone.model.named_parameters() if "lora" not in n
        )
    if train == "last_blocks":
        assert {n.split(".")[1] for n in moved if n.startswith("layers")} <= {"2"}
    counted = sum(p.numel() for p in backbone.model.parameters() if p.requires_grad)
    assert found.n_tuned == counted


@pytest.mark.parametrize("train", ["lora", "full"])
def test_parts_have_the_gradients_of_the_whole(own: Own, train: str) -> None:
    def gradients(at_a_time: int | None) -> dict[str, torch.Tensor]:
        backbone = own("bert")
        reader = live(backbone)
        wanted = config(train, optim={"at_a_time": at_a_time, "activations": "recomputed"})
        if train == "lora":
            wanted = wanted.model_copy(
                update={"train": wanted.train.model_copy(update={"dropout": 0.0})}
            )
        data = data_of(reader)
        examples = splits(3, "true", data)
        trainee = TunedHeadTrainee(
            wanted, facts_of(data, examples[0]), examples, reader, torch.device("cpu")
        )
        trainee.model.train()
        trainee.gradients(next(iter(trainee.batches(1))), lambda _: None)
        return {n: p.grad for n, p in trainee.model.named_parameters() if p.grad is not None}

    whole, parts = gradients(None), gradients(3)
    assert whole.keys() == parts.keys()
    assert any(name.startswith("tuned.") for name in whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "train",
    [
        "lora",
        *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("probe", "full", "last_blocks")),
    ],
)
def test_one_that_is_killed_goes_on_where_it_was(own: Own, tmp_path: Path, train: str) -> None:
    wanted = config(train, optim={"backbone_lr": 0.01})
    file = tmp_path / "fit.pt"
    expected = tuned(own("llama"), wanted)
    for n_steps in (2, 2):
        backbone = own("llama")
        reader = live(backbone)
        with pytest.raises(Stopped):
            finetune_head(wanted, data_of(reader), reader, Stopping(n_steps), checkpoint=file)
        assert file.exists()
    # The second time it was killed before the result was saved.
    for _ in range(2):
        found = tuned(own("llama"), wanted, checkpoint=file)
        assert all(torch.equal(v, found.fit.state[n]) for n, v in expected.fit.state.items())
        assert expected.backbone.keys() == found.backbone.keys()
        assert all(torch.equal(v, found.backbone[n]) for n, v in expected.backbone.items())
        assert found.fit.log == expected.fit.log


def test_a_checkpoint_is_of_one_kind_of_device(own: Own, tmp_path: Path) -> None:
    wanted, file = config("probe"), tmp_path / "fit.pt"
    reader = live(own("llama"))
    with pytest.raises(Stopped):
        finetune_head(wanted, data_of(reader), reader, Stopping(2), checkpoint=file)
    whole, _ = prepared(wanted, data_of(reader))
    found = {
        device: checkpoint_on(file, whole, data_of(reader), torch.device(device), 0).load() is None
        for device in ("cpu", "cpu:0", "cuda")
    }
    assert found == {"cpu": False, "cpu:0": False, "cuda": True}


@pytest.mark.few(2)
@pytest.mark.parametrize("train", sorted(TUNINGS))
def test_what_was_saved_is_what_was_trained(own: Own, tmp_path: Path, train: str) -> None:
    backbone = own("llama")
    found = tuned(backbone, config(train, optim={"backbone_lr": 0.01, "max_epochs": 1}))
    save_tuned_head(found, tmp_path)
    loaded, other = load_tuned_head(tmp_path), own("llama")
    loaded.tune(other)
    assert loaded.n_backbone_parameters == found.n_tuned
    texts = np.arange(len(TEXTS))
    with torch.no_grad():
        ours, theirs = live(other).rows(texts)[0], live(backbone).rows(texts)[0]
    assert torch.equal(ours, theirs)
    base = live(own("llama")).rows(texts)[0]
    assert torch.equal(ours, base) == (train in ("probe", "last_blocks")), (
        "hidden/2 of three blocks"
    )
    assert all(
        torch.equal(v, loaded.head.model.state_dict()[n]) for n, v in found.fit.state.items()
    )


def test_files_that_are_damaged_or_missing_are_told(own: Own, tmp_path: Path) -> None:
    found = tuned(own("bert"), config("lora", optim={"max_epochs": 1}))
    save_tuned_head(found, tmp_path)
    (tmp_path / "finetune.json").write_text("{")
    with pytest.raises(CorruptDataError, match=r"tuned backbone .* is damaged"):
        load_tuned_head(tmp_path)
    (tmp_path / "finetune.json").unlink()
    with pytest.raises(NotFoundError, match=r"finetune\.json is missing"):
        load_tuned_head(tmp_path)


def test_more_blocks_than_there_are_cannot_be_trained(pair: Pairs) -> None:
    sizes = pair("bert").backbone.sizes
    TUNINGS_OF_A_BACKBONE.validate({"kind": "last_blocks", "n": 3}).require(sizes)
    with pytest.raises(InputError, match="last_blocks with n 4, but the backbone has 3 blocks"):
        TUNINGS_OF_A_BACKBONE.validate({"kind": "last_blocks", "n": 4}).require(sizes)


def test_adapters_draw_anew_in_each_pass_of_a_batch(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of texts of several lengths is several passes, here as they cost little."""
    monkeypatch.setitem(by_length.PASS_TOKENS, "cpu", 1)
    passes, drawn, one_pass, drawing = [], [], LiveReader._pass, Adapters.drawing

    def counted(reader: LiveReader, *args: Any) -> list[torch.Tensor]:
        if torch.is_grad_enabled():
            passes.append(reader)
        return one_pass(reader, *args)

    def drawing_of(adapters: Adapters) -> AbstractContextManager[None]:
        if torch.is_grad_enabled():
            drawn.append(adapters)
        return drawing(adapters)

    monkeypatch.setattr(LiveReader, "_pass", counted)
    monkeypatch.setattr(Adapters, "drawing", drawing_of)
    tuned(own("bert"), config("lora", "mean", optim={"batch_size": 12, "max_epochs": 1}))
    assert len(drawn) == len(passes) > 1
