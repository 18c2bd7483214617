"""Poolings whose backbone is tuned by a contrastive loss: what gets a gradient, in every family, and how a
training goes on, is split and is controlled."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import Backbone, BackboneFiles
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.read_arrays import arrays_of
from permafrost.stages.finetune.tuned_head import TunedHeadResult, TunedHeadTrainee, finetune_head
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, TunedOptim, prepared
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.stages.fit import Examples, FitData
from permafrost.stages.fit.training import facts_of
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.extraction.tiny_models import WORDS
from tests.stages.finetune import test_cached_below
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.test_graph_text_models import Stopped, Stopping

Pairs = Callable[[str], Pair]
N = 20
TEXTS = [
    " ".join([*WORDS[2 + i % 7 : 4 + i % 7 + i % 4], WORDS[2 + (i * 5) % 12], "."])
    for i in range(3 * N)
]
"""Queries, their answers, and a wrong answer for each of them."""
LORA: dict[str, Any] = {
    "kind": "lora",
    "r": 2,
    "alpha": 4,
    "dropout": 0.3,
    "targets": "without_keys",
}
OPTIM = {"lr": 0.01, "backbone_lr": 0.01, "batch_size": 5, "max_epochs": 2, "patience": None}
VA = "values/1-2"
"""Of three blocks: block 2 is the last that is pooled."""


@dataclass(frozen=True)
class Reached:
    """What has a gradient in the last pooled block, from the block."""

    values: str
    norm: str | None
    """The norm before; None where it ends the block below."""
    share: Callable[[Tensor], Tensor] = lambda weight: weight
    """The part of a fused layer's weight that makes the values."""


_BERT = Reached("attention.self.value", None)
_LLAMA = Reached("self_attn.v_proj", "input_layernorm")
REACHED = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": Reached("attention.v_lin", None),
    "mpnet": Reached("attention.attn.v", None),
    "modernbert": Reached("attn.Wqkv", "attn_norm", lambda w: w.chunk(3)[2]),
    "gpt2": Reached("attn.c_attn", "ln_1", lambda w: w.chunk(3, dim=-1)[2]),
    "gpt_neox": Reached(
        "attention.query_key_value",
        "input_layernorm",
        # Head by head: queries, keys, values.
        lambda w: w.unflatten(0, (4, 3, -1))[:, 2],
    ),
    "opt": Reached("self_attn.v_proj", "self_attn_layer_norm"),
    "phi3": Reached("self_attn.qkv_proj", "input_layernorm", lambda w: w[-16:]),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2"), _LLAMA),
}


def live(backbone: Backbone, array: str = VA) -> LiveReader:
    return LiveReader(backbone, resolved(backbone, "plain"), encoded(backbone, texts=TEXTS), array)


def data_of(reader: LiveReader) -> FitData:
    # One and two hard negatives in turn, none for the third.
    negatives = [[2 * N + (i + k) % N for k in range((i + 1) % 3)] for i in range(N)]
    examples = pa.table(
        {
            "split": ["train"] * 12 + ["dev"] * 4 + ["test"] * 4,
            "text": pa.array(range(N), pa.int64()),
            "text_pair": pa.array(range(N, 2 * N), pa.int64()),
            "label": pa.nulls(N, pa.float64()),
            "negatives": pa.array(negatives, pa.list_(pa.int64())),
        }
    )
    digests = [f"{i:032x}" for i in range(len(TEXTS))]
    return FitData({reader.array: reader}, examples, (), digests, "unlabelled")


def config(
    layer: str = VA, train: Any = LORA, optim: dict[str, Any] | None = None, **others: Any
) -> TunedHeadConfig:
    loss = {
        "kind": "contrastive",
        "similarity": "cosine",
        "temperature": 0.02,
        "hard_negatives": "add",
    }
    fit = {"head": {"kind": "mean"}, "layer": layer, "seed": 3, "loss": loss, "metric": "mrr"}
    return TunedHeadConfig.model_validate(
        {
            "fit": {**fit, **others},
            "train": train,
            "optim": {**OPTIM, **(optim or {})},
            "n_negatives": 1,
        }
    )


def tuned(backbone: Backbone, wanted: TunedHeadConfig, **others: Any) -> TunedHeadResult:
    reader = live(backbone, wanted.fit.layer)
    return finetune_head(wanted, data_of(reader), reader, SilentProgress(), **others)


def trainee_of(backbone: Backbone, wanted: TunedHeadConfig) -> TunedHeadTrainee:
    reader = live(backbone, wanted.fit.layer)
    data = data_of(reader)
    whole, examples = prepared(wanted, data)
    facts = facts_of(data, examples[0])
    trainee = TunedHeadTrainee(whole, facts, examples, reader, torch.device("cpu"))
    trainee.model.train()
    return trainee


def gradients(backbone: Backbone, wanted: TunedHeadConfig) -> dict[str, Tensor]:
    """Of the first batch, by adapters that are not zero."""
    trainee = trainee_of(backbone, wanted)
    assert trainee.model.tuned is not None
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in trainee.model.tuned.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    trainee.gradients(next(iter(trainee.batches(1))), lambda _: None)
    named = trainee.model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def ran(backbone: Backbone) -> dict[str, int]:
    """Counts, from now on, how often modules begin; by name."""
    counts: dict[str, int] = {}

    def count(name: str) -> Callable[..., None]:
        def add(*_: Any) -> None:
            counts[name] = counts.get(name, 0) + 1

        return add

    for name, module in backbone.model.named_modules():
        module.register_forward_pre_hook(count(name))
    return counts


SHORT = {"bert", "gpt_neox", "llama", "mpnet"}
"""An encoder, one with attention of ours, a fused layer, and grouped queries; deep tests have the other
families."""


@pytest.mark.parametrize(
    "family",
    [
        *sorted(SHORT),
        *(pytest.param(f, marks=pytest.mark.deep) for f in sorted(FAMILIES.keys() - SHORT)),
    ],
)
def test_under_va_only_the_values_and_the_norm_before_them_are_reached(
    own: Own, family: str
) -> None:
    backbone, wanted = own(family), REACHED[family]
    weights = dict(backbone.model.named_parameters())
    backbone.model.requires_grad_(True)
    counts = ran(backbone)
    rows, _ = live(backbone).rows(np.arange(6))
    rows.square().sum().backward()
    got = {n: p.grad for n, p in weights.items() if p.grad is not None}
    blocks = backbone.family.blocks
    below, last, behind = (
        {
            n.removeprefix(f"{blocks}.{i}."): g
            for n, g in got.items()
            if n.startswith(f"{blocks}.{i}.")
        }
        for i in range(3)
    )
    expected = {n for n in (wanted.values, wanted.norm) if n is not None}
    assert {n.rpartition(".")[0] for n, g in last.items() if g.abs().sum()} == expected
    for name in ("weight", "bias"):
        if (gradient := last.get(f"{wanted.values}.{name}")) is not None:
            values = wanted.share(gradient)
            assert values.count_nonzero() > 0
            assert values.count_nonzero() == gradient.count_nonzero(), "of a fused layer"
    assert not behind
    norm = backbone.family.final_norm
    assert norm is None or not any(n.startswith(f"{norm}.") for n in got)
    matrices = [n for n, p in weights.items() if n.startswith(f"{blocks}.0.") and p.ndim == 2]
    assert all(below[n.removeprefix(f"{blocks}.0.")].abs().sum() > 0 for n in matrices)
    # Nothing behind the values runs: neither the rest of block 2, nor block 3, nor the final norm.
    family_of = backbone.family
    rest = (family_of.output_projection, *family_of.feed_forward_layers)
    assert counts[f"{blocks}.0.{rest[0]}"] == counts[f"{blocks}.1"] > 0
    assert not any(f"{blocks}.1.{path}" in counts for path in rest)
    assert f"{blocks}.2" not in counts
    assert norm not in counts


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_several_layers_are_averaged(pair: Pairs, family: str) -> None:
    backbone = pair(family).backbone
    batch, recipe = encoded(backbone, texts=TEXTS), resolved(backbone, "plain")
    span = torch.from_numpy(np.flatnonzero(batch.span.data))
    for layer, names in (
        ("values/half", ["values/1", "values/2", "values/3"]),
        ("values/1,3", ["values/1", "values/3"]),
        ("hidden/0-1", ["hidden/0", "hidden/1"]),
    ):
        stored = forward(backbone, batch, names, recipe)
        expected = torch.stack([stored[n].float()[span] for n in names]).mean(0)
        reader = live(backbone, layer)
        rows, offsets = reader.rows(np.arange(len(TEXTS)))
        assert close(rows, expected), layer
        assert np.array_equal(np.diff(offsets.numpy()), reader.lengths)
        assert reader.width == rows.shape[1]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("values/9", "values=9 was asked for, but this llama backbone has values 1 to 3"),
        ("values/final", "none follows the final norm"),
        (
            "hidden/most",
            "'hidden/most' is no layer that can be computed; write one, such as hidden/6",
        ),
        ("6", "'6' is no layer"),
        ("pooled/hidden/1", "is not a captured array"),
    ],
)
def test_layers_that_are_not_there_are_refused(pair: Pairs, layer: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        arrays_of(layer, pair("llama").backbone.sizes)


def test_values_may_come_from_blocks_above_a_stored_layer(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    test_cached_below.agree(tiny_files("llama"), 2, "values/2-3")


def test_frozen_weights_and_adapters_behind_the_values_stay_as_they_were(own: Own) -> None:
    backbone, other = own("llama"), own("llama")
    wanted = config()
    fresh = trainee_of(other, wanted).model.tuned
    assert fresh is not None
    begun = {n: w.detach().clone() for n, w in fresh.weights.items()}
    base = {n: p.detach().clone() for n, p in backbone.model.named_parameters()}
    found = tuned(backbone, wanted)
    now = dict(backbone.model.named_parameters())
    kept = {n: now[n if n in now else _based(n)] for n in base}
    assert all(torch.equal(kept[n], weight) for n, weight in base.items())
    assert all(p.grad is None and not p.requires_grad for p in kept.values())
    moved = {
        n.removeprefix("weights.")
        for n, w in found.backbone.items()
        if n.startswith("weights.") and not torch.equal(w, begun[n.removeprefix("weights.")])
    }
    reached = {n for n in begun if "/0/" in n or ("/1/" in n and "v_proj" in n)}
    assert moved == reached
    # Rank 2 in widths of 32, 16 (values) and 48 (feed-forward layers).
    block, values = 2 * (64 + 48 + 64 + 3 * 80), 2 * 48
    assert (found.n_tuned, found.n_reached) == (3 * block, block + values)


def _based(name: str) -> str:
    layer, _, what = name.rpartition(".")
    return f"{layer}.base_layer.{what}"


def test_under_mean_pooling_every_adapter_is_reached(own: Own) -> None:
    found = tuned(own("llama"), config("hidden/final", optim={"max_epochs": 1}))
    assert found.n_reached == found.n_tuned == 3 * 2 * (64 + 48 + 64 + 3 * 80)


SILENT = {**LORA, "dropout": 0.0}


@pytest.mark.parametrize("layer", [VA, "hidden/final"])
def test_parts_have_the_gradients_of_the_whole_batch(own: Own, layer: str) -> None:
    whole = gradients(own("llama"), config(layer, SILENT))
    for optim in ({"at_a_time": 3}, {"activations": "recomputed"}):
        agree(gradients(own("llama"), config(layer, SILENT, optim=optim)), whole)
    # Of the parts by themselves the loss has fewer negatives.
    small = gradients(own("llama"), config(layer, SILENT, optim={"batch_size": 3}))
    assert any(not torch.allclose(small[n], g, rtol=1e-2) for n, g in whole.items())


def test_recomputed_blocks_draw_what_they_drew(own: Own) -> None:
    kept = gradients(own("llama"), config())
    agree(gradients(own("llama"), config(optim={"activations": "recomputed"})), kept)
    silent = gradients(own("llama"), config(train=SILENT))
    assert any(not torch.allclose(silent[n], g, rtol=1e-2) for n, g in kept.items())


def test_a_batch_that_does_not_fit_is_split(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(own("llama"), config(train=SILENT))
    asked: list[int] = []
    rows = LiveReader.rows

    def limited(self: LiveReader, texts: Any) -> Any:
        asked.append(len(texts))
        if len(texts) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return rows(self, texts)

    monkeypatch.setattr(LiveReader, "rows", limited)
    agree(gradients(own("llama"), config(train=SILENT)), whole)
    n_texts = asked[0]
    assert n_texts > 10, "both texts of five pairs, and negatives"
    assert max(asked[-(n_texts // 4) :]) <= 4


@pytest.mark.deep
def test_a_recomputed_training_is_killed_and_goes_on(own: Own, tmp_path: Path) -> None:
    killed_and_resumed(own, tmp_path, config(optim={"activations": "recomputed"}))


def test_one_that_is_killed_goes_on_in_the_middle_of_an_epoch(own: Own, tmp_path: Path) -> None:
    killed_and_resumed(own, tmp_path, config(optim={"max_epochs": 1}))


@pytest.mark.deep
def test_the_seed_decides(own: Own) -> None:
    one, same, other = (tuned(own("llama"), config(seed=seed)).backbone for seed in (3, 3, 4))
    assert all(torch.equal(v, same[n]) for n, v in one.items())
    assert any(not torch.equal(v, other[n]) for n, v in one.items())


def killed_and_resumed(own: Own, folder: Path, wanted: TunedHeadConfig) -> None:
    file = folder / "fit.pt"
    expected = tuned(own("llama"), wanted)
    backbone = own("llama")
    reader = live(backbone)
    with pytest.raises(Stopped):
        # In the middle of an epoch, which has three steps.
        finetune_head(wanted, data_of(reader), reader, Stopping(2), checkpoint=file)
    assert file.exists()
    found = tuned(own("llama"), wanted, checkpoint=file)
    assert not file.exists()
    assert all(torch.equal(v, found.backbone[n]) for n, v in expected.backbone.items())
    assert (found.fit.log, found.n_reached) == (expected.fit.log, expected.n_reached)


def test_the_control_has_other_partners(own: Own) -> None:
    data = data_of(live(own("llama")))
    _, (train, dev) = prepared(config(), data)
    _, (mixed, mixed_dev) = prepared(config(labels="shuffled"), data)
    for before, after in ((train, mixed), (dev, mixed_dev)):
        assert np.array_equal(before.sides[0], after.sides[0])
        assert not np.array_equal(before.sides[1], after.sides[1])
        assert sorted(before.sides[1]) == sorted(after.sides[1])


def test_the_first_negatives_of_an_example_are_used(own: Own) -> None:
    examples = Examples(
        "train",
        (np.arange(4), np.arange(4)),
        np.ones(4, np.int64),
        Ragged(np.array([7, 8, 9, 5, 6]), np.array([0, 3, 3, 5, 5])),
    )
    one = examples.with_negatives(1).negatives
    assert one is not None
    assert one.data.tolist() == [7, 5]
    assert one.offsets.tolist() == [0, 1, 1, 2, 2]
    assert examples.with_negatives(None) is examples
    two = examples.with_negatives(2).negatives
    assert two is not None
    assert two.data.tolist() == [7, 8, 5, 6]
    seen = {len(batch[1].data) for batch in trainee_of(own("llama"), config()).batches(1)}
    # Two thirds of 12 pairs have a negative: 32 texts in an epoch.
    assert sum(len(b[1].data) for b in trainee_of(own("llama"), config()).batches(1)) == 32
    assert max(seen) > 10


def test_untuned_it_is_the_pooling_itself(own: Own, tmp_path: Path) -> None:
    backbone = own("llama")
    found = tuned(backbone, config(train="probe"), checkpoint=tmp_path / "fit.pt")
    assert (found.fit.best.epoch, found.n_tuned, found.fit.history) == (0, 0, ())
    rows, offsets = live(backbone).rows(np.arange(len(TEXTS)))
    vectors = np.stack(
        [part.mean(0).detach().numpy() for part in rows.split(offsets.diff().tolist())]
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked, there = vectors[12:16], vectors[N + 12 : N + 16]
    cosines = asked @ there.T
    ranks = [(row >= row[i] - 1e-6).sum() for i, row in enumerate(cosines)]
    assert found.fit.best.dev_metric == pytest.approx(np.mean(1 / np.array(ranks)))
    save_tuned_head(found, tmp_path)
    loaded = load_tuned_head(tmp_path)
    assert loaded.head.epoch == 0
    assert loaded.n_with_gradient == 0
    assert not (tmp_path / "backbone").exists()


def test_the_best_epoch_is_kept_and_training_stops_without_a_better_one(own: Own) -> None:
    found = tuned(own("llama"), config(optim={"max_epochs": 9, "patience": 1, "backbone_lr": 0.5}))
    scores = [r.dev_metric for r in found.fit.history]
    assert len(scores) < 9
    assert found.fit.best.dev_metric == max(scores)
    assert len(scores) == found.fit.best.epoch + 1


def test_the_rate_rises_over_the_warm_up_steps(own: Own) -> None:
    found = tuned(own("llama"), config(optim={"warmup_steps": 4}))
    assert [r.lr for r in found.fit.log] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    data = data_of(live(own("llama")))
    with pytest.raises(
        InputError, match=r"warmup_steps is 6, but training has at most 6 steps \(2 epochs"
    ):
        prepared(config(optim={"warmup_steps": 6}), data)
    with pytest.raises(ValueError, match=r"warmup is 0\.1 .* and warmup_steps 4; give one of them"):
        TunedOptim(warmup=0.1, warmup_steps=4)


def test_a_batch_of_one_pair_is_refused(own: Own) -> None:
    with pytest.raises(InputError, match=r"batch_size is 1, but loss contrastive tells"):
        prepared(config(optim={"batch_size": 1}), data_of(live(own("llama"))))


@pytest.mark.deep
def test_modules_have_no_hooks_left(own: Own) -> None:
    backbone = own("llama")
    tuned(backbone, config(optim={"max_epochs": 1, "activations": "recomputed"}))
    blocks: list[nn.Module] = list(backbone.family.block_list(backbone.model))
    assert all("forward" not in vars(block) for block in blocks)
