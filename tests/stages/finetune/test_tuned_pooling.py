"""Poolings whose backbone is tuned by a contrastive loss: what gets a gradient, in every family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone, BackboneFiles
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.finetune.read_arrays import arrays_of
from permafrost.storage.errors import InputError
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.finetune import test_cached_below
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.tuned_pooling_fits import (
    TEXTS,
    Pairs,
    config,
    live,
    trainee_of,
    tuned,
)


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
