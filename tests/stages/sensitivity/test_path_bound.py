"""HTP's constants and inequalities, against a dense product of transformers' own derivatives."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.recipes import Encoded
from permafrost.stages.sensitivity.local_constants import text_constants
from permafrost.stages.sensitivity.mixing import block_mixings, copies_before
from permafrost.stages.sensitivity.path_bound import (
    bounds,
    evenness,
    jacobian_norms,
    measure_path_bound,
)
from permafrost.stages.sensitivity.path_bound_config import PRE_NORM, PathBoundConfig
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import encoded, prepended, resolved, seen
from tests.stages.extraction.rewired_runs import HTP
from tests.stages.extraction.tiny_models import D_MODEL, N_LAYERS, TEXTS

pytestmark = pytest.mark.deep

Pairs = Callable[[str], Pair]
TEXT = "snow melts in the wind"
ROUNDING = 1e-4
"""Float32 on one side, sums in float64 on the other; relative."""


def derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(function, at)
    return cast(Tensor, found).double()


def dense_block(
    model: nn.Module, k: int, weights_HTT: Tensor, x_TD: Tensor, y_TD: Tensor
) -> Tensor:
    """`[T, D, T, D]`: derivative of a block with its attention weights held constant, written out."""
    block = cast(Any, model).h[k] if hasattr(model, "h") else cast(Any, model).layers[k]
    if hasattr(block, "attn"):
        norm, second = block.ln_1, block.ln_2
        into, out = block.attn.c_attn.weight[:, -D_MODEL:], block.attn.c_proj.weight
    else:
        norm, second = block.input_layernorm, block.post_attention_layernorm
        into, out = block.self_attn.v_proj.weight.T, block.self_attn.o_proj.weight.T
    n, n_heads = len(x_TD), len(weights_HTT)
    out_HVD = out.double().reshape(n_heads, -1, D_MODEL)
    in_GDV = into.double().reshape(D_MODEL, -1, out_HVD.shape[1]).transpose(0, 1)
    in_HDV = in_GDV.repeat_interleave(n_heads // len(in_GDV), dim=0)
    mixed = torch.eye(n * D_MODEL, dtype=torch.float64).reshape(n, D_MODEL, n, D_MODEL)
    for i in range(n):
        of_norm_DD = derivative(norm, x_TD[i])
        for h in range(n_heads):
            head_DD = (in_HDV[h] @ out_HVD[h]).T @ of_norm_DD
            mixed[:, :, i] += weights_HTT[h, :, i].double()[:, None, None] * head_DD
    for j in range(n):
        of_rest = torch.eye(D_MODEL, dtype=torch.float64) + derivative(
            lambda y: block.mlp(second(y)), y_TD[j]
        )
        mixed[j] = torch.einsum("ab,btd->atd", of_rest, mixed[j])
    return mixed


@pytest.mark.few(1)
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3"])
def test_norms_are_those_of_a_dense_product(pair: Pairs, model_type: str) -> None:
    """transformers' own states and attention weights, all blocks multiplied, spectral norms by SVD."""
    both = pair(model_type)
    batch, recipe = encoded(both.backbone, texts=(TEXT,)), resolved(both.backbone, "plain")
    model = both.reference
    blocks = cast(Any, model).h if model_type == "gpt2" else cast(Any, model).layers
    second = [b.ln_2 if model_type == "gpt2" else b.post_attention_layernorm for b in blocks]
    first = [b.ln_1 if model_type == "gpt2" else b.input_layernorm for b in blocks]
    ids = torch.from_numpy(batch.token_ids[0].astype(np.int64))[None]
    product: Tensor | None = None
    with (
        seen(first[0], inputs=True) as x0,
        seen(first[1], inputs=True) as x1,
        seen(second[0], inputs=True) as y0,
        seen(second[1], inputs=True) as y1,
        torch.no_grad(),
    ):
        attentions = model(input_ids=ids, output_attentions=True).attentions
    assert attentions is not None
    for k, (x, y) in enumerate([(x0[0][0], y0[0][0]), (x1[0][0], y1[0][0])]):
        block = dense_block(model, k, attentions[k][0], x, y)
        product = block if product is None else torch.einsum("tdse,seuf->tduf", block, product)
    assert product is not None
    names = [ArrayName("hidden", "readout", 2), ArrayName("hidden", "mean", 2)]
    ours = jacobian_norms(both.backbone, batch, recipe, names)
    span = torch.from_numpy(batch.span[0])
    for name, rows in zip(names, (product[-1], product[span].mean(0)), strict=True):
        theirs = torch.linalg.matrix_norm(rows.transpose(0, 1), ord=2).detach().numpy()
        assert ours[name.text] == pytest.approx(theirs, rel=ROUNDING, abs=1e-6 * theirs.max())


def one(backbone: Any, how: str) -> Encoded:
    if how == "plain":
        return encoded(backbone, texts=(TEXTS[1],))
    return prepended(backbone, TEXTS[1:2], size=8)


@pytest.mark.few(2)
@pytest.mark.parametrize("model_type", PRE_NORM)
@pytest.mark.parametrize("how", ["plain", pytest.param(HTP, marks=pytest.mark.deep)])
def test_both_inequalities_hold_at_every_depth(pair: Pairs, model_type: str, how: str) -> None:
    """And what attention lets through nowhere is 0 on both sides."""
    backbone = pair(model_type).backbone
    batch, recipe = one(backbone, how), resolved(backbone, how)
    constants = text_constants(backbone, batch, recipe)
    names = [ArrayName("hidden", r, d) for r in ("readout", "mean") for d in (1, N_LAYERS, "final")]
    norms = jacobian_norms(backbone, batch, recipe, names)
    for name in names:
        right = bounds(constants, batch, recipe, name.index)
        readout = "mean" if name.how == "mean" else "readout"
        assert (norms[name.text] <= right[readout] * (1 + ROUNDING)).all(), name
        assert ((norms[name.text] > 0) <= (right[readout] > 0)).all()
    whole = bounds(constants, batch, recipe, "final")
    constant = constants.constant(N_LAYERS) * constants.final_norm
    assert whole["readout"].sum() == pytest.approx(constant, rel=1e-6), "rows of A sum to 1"
    assert whole["mean"].sum() == pytest.approx(constant, rel=1e-6)


def test_constants_are_those_of_the_parts(pair: Pairs) -> None:
    """Of a model whose heads are alike the mixing is the mean over heads; a block without attention or
    feed-forward layers has strength 0 and growth 1."""
    both = pair("llama")
    batch, recipe = one(both.backbone, "plain"), resolved(both.backbone, "plain")
    found = text_constants(both.backbone, batch, recipe)
    plain = block_mixings(both.backbone, batch, recipe, N_LAYERS)
    for block, mean in zip(found.blocks, plain, strict=True):
        assert block.mixing.sum(axis=1) == pytest.approx(np.ones(len(mean)), abs=1e-5)
        assert not np.triu(block.mixing, 1).any()
        assert (block.mixing > 0).sum() == (mean > 0).sum()
    block = cast(Any, both.backbone.model).layers[1]
    kept = (
        block.self_attn.o_proj.weight.detach().clone(),
        block.mlp.down_proj.weight.detach().clone(),
    )
    try:
        with torch.no_grad():
            block.mlp.down_proj.weight.zero_()
            block.self_attn.o_proj.weight.mul_(3)
        changed = text_constants(both.backbone, batch, recipe).blocks[1]
    finally:
        with torch.no_grad():
            block.self_attn.o_proj.weight.copy_(kept[0])
            block.mlp.down_proj.weight.copy_(kept[1])
    assert changed.growth == pytest.approx(1, abs=1e-9)
    assert changed.strength == pytest.approx(3 * found.blocks[1].strength, rel=1e-5)


@pytest.mark.deep
def test_curves_are_over_depth(pair: Pairs) -> None:
    both = pair("llama")
    config = PathBoundConfig(n_texts=9, min_words=2, max_tokens=24)
    recipe = resolved(both.backbone, "plain")
    found = measure_path_bound(config, both.backbone, recipe, 60, TEXTS, SilentProgress())
    values = {(p.measure, p.at): p.value for p in found.points}
    assert found.axis == "block"
    depths = [*map(str, range(1, N_LAYERS + 1)), "final"]
    assert [p.at for p in found.points if p.measure == "log10 of K"] == depths
    assert [p.at for p in found.points if p.measure.startswith("weight of")] == depths[:-1]
    for called in ("last token", "mean"):
        for at in depths:
            assert 0 < values[f"{called}: largest share of the bound", at] <= 1 + ROUNDING
            for side in ("bound", "measured"):
                assert 0 < values[f"{called}: evenness, {side}", at] <= 1
    # One block of attention and the last token: most of what it hangs on is itself.
    assert values["last token: evenness, bound", "1"] < values["mean: evenness, bound", "1"]
    only = config.model_copy(update={"blocks": (2,)})
    fewer = measure_path_bound(only, both.backbone, recipe, 60, TEXTS, SilentProgress())
    assert {p.at for p in fewer.points} == {"2"}
    for point in fewer.points:
        assert point.value == pytest.approx(values[point.measure, "2"], rel=1e-6)


def test_evenness_counts_values_alike() -> None:
    assert evenness(np.ones(5)) == pytest.approx(1)
    assert evenness(np.array([3.0, 0, 0, 0])) == pytest.approx(0.25)
    assert evenness(np.array([2.0, 2, 0, 0])) == pytest.approx(0.5)


def test_what_has_no_bound_is_refused(pair: Pairs) -> None:
    config = PathBoundConfig()
    with pytest.raises(InputError, match="a gemma2 backbone does not have; use one of gpt2, llama"):
        config.read_blocks(pair("gemma2").backbone.sizes)
    sizes = pair("llama").backbone.sizes
    with pytest.raises(InputError, match="blocks has 4, but this llama backbone has blocks 1 to 3"):
        PathBoundConfig(blocks=(1, 4)).read_blocks(sizes)
    assert PathBoundConfig(blocks=(3, 1)).read_blocks(sizes) == (1, 3)
    both, short = pair("llama"), PathBoundConfig(min_words=1, max_tokens=3)
    recipe = resolved(both.backbone, "plain")
    with pytest.raises(InputError, match="has 4 tokens of its own within 3; raise max_tokens"):
        measure_path_bound(short, both.backbone, recipe, 60, TEXTS, SilentProgress())
    assert copies_before(recipe, one(both.backbone, "plain"), 2) == [None, None]
