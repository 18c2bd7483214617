"""Contrastive prompting against transformers' eager pass with a hook of the test's own on the output
projection, one unpadded text at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import BackboneFiles, load_backbone
from permafrost.stages.extraction.recipes import Encoded
from permafrost.storage.errors import PermafrostError
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    BF16_TOLERANCE,
    DECODERS,
    Pairs,
    block_list,
    close,
    embeddings,
    encoded,
    entries,
    per_text,
    projection,
    reference_run,
    rewired_run,
    seen,
    threads_agree,
)
from tests.stages.extraction.rewired_runs import agrees_with, run
from tests.stages.extraction.tiny_models import each_family

TEXTS = ("ice", "the lake freezes", "snow !")
"""Short enough for both prompts to fit into the tiny models' 64 positions."""
PROMPTS = 'template=so "{text}" is:,auxiliary=beside the point of "{text}":'
SCALED = f"contrastive:block=2,mode=scaled,coefficient=0.5,{PROMPTS}"
NORM = f"contrastive:block=2,mode=norm,{PROMPTS}"
TINY = 1e-7


@contextmanager
def last_input_becomes(module: nn.Module, value: Tensor) -> Iterator[None]:
    def hook(_module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        changed = args[0].clone()
        changed[0, -1] = value
        return changed

    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def contrasted(both: Pair, batch: Encoded, i: int, block: int, recipe: str) -> tuple[Tensor, ...]:
    """Both prompts' inputs of the output projection at their last tokens, and what is put there."""
    assert batch.auxiliary is not None
    module = projection(both.reference, block)
    with seen(module, inputs=True) as passed:
        reference_run(both, batch.token_ids[i])
        reference_run(both, batch.auxiliary.token_ids[i])
    positive, negative = passed[0][0, -1], passed[1][0, -1]
    difference = positive - negative
    if "mode=norm" in recipe:
        replaced = difference * positive.norm() / (difference.norm() + TINY)
    else:
        replaced = 0.5 * difference
    return positive, negative, replaced


def agrees(both: Pair, ours: dict[str, Tensor], batch: Encoded, recipe: str, block: int) -> None:
    for i, ids in enumerate(batch.token_ids):
        replaced = contrasted(both, batch, i, block, recipe)[2]
        inputs = embeddings(both.reference, ids, {})
        module = projection(both.reference, block)
        with torch.no_grad(), last_input_becomes(module, replaced):
            theirs = rewired_run(both, inputs, np.zeros((0, 2), np.int64), range(0))
        agrees_with(ours, theirs, batch, i)


@pytest.mark.parametrize("recipe", [SCALED, NORM], ids=["scaled", "norm"])
@pytest.mark.parametrize("model_type", each_family(DECODERS))
class TestEveryDecoder:
    def test_everything_captured_equals_the_formula_written_out(
        self, pair: Pairs, model_type: str, recipe: str
    ) -> None:
        both = pair(model_type)
        batch = encoded(both.backbone, recipe, TEXTS)
        assert len(set(batch.token_ids.lengths.tolist())) == len(TEXTS)
        agrees(both, run(both.backbone, batch, recipe), batch, recipe, 2)

    def test_one_by_one_equals_batched(self, pair: Pairs, model_type: str, recipe: str) -> None:
        backbone = pair(model_type).backbone
        batch = encoded(backbone, recipe, TEXTS)
        together = run(backbone, batch, recipe)
        for i in range(len(TEXTS)):
            for name, rows in run(backbone, batch.take(np.array([i])), recipe).items():
                assert close(per_text(together[name], batch)[i], rows), name

    def test_nothing_but_the_last_token_from_that_block_on_changes(
        self, pair: Pairs, model_type: str, recipe: str
    ) -> None:
        """Bitwise: in a causal model no other token sees the last one."""
        backbone = pair(model_type).backbone
        batch = encoded(backbone, recipe, TEXTS)
        changed, plain = run(backbone, batch, recipe), run(backbone, batch, "plain")
        for name, rows in changed.items():
            if name.startswith("attention_rows/3"):
                continue
            before = name in ("hidden/0", "hidden/1") or name.split("/")[1] in ("1", "2")
            before &= name != "hidden/2"
            for ours, usual in zip(
                per_text(rows, batch), per_text(plain[name], batch), strict=True
            ):
                assert torch.equal(ours[:-1], usual[:-1]), name
                assert torch.equal(ours[-1], usual[-1]) == before, name


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2"])
def test_any_block_can_be_the_one(pair: Pairs, model_type: str, block: int) -> None:
    both = pair(model_type)
    recipe = f"contrastive:block={block},mode=norm,{PROMPTS}"
    batch = encoded(both.backbone, recipe, TEXTS)
    agrees(both, run(both.backbone, batch, recipe), batch, recipe, block)


def test_norm_keeps_the_length_and_scaled_does_not(pair: Pairs) -> None:
    """Of the projection's own input, as our run has it; 1e-5 relative: float32 norms of 32 numbers."""
    both = pair("llama")
    for recipe in (SCALED, NORM):
        batch = encoded(both.backbone, recipe, TEXTS[1:2])
        positive, negative, _ = contrasted(both, batch, 0, 2, recipe)
        with seen(projection(both.backbone.model, 2), inputs=True) as passed:
            run(both.backbone, batch, recipe)
        z = passed[-1][0, -1]
        expected = positive.norm() if recipe == NORM else 0.5 * (positive - negative).norm()
        assert float(z.norm()) == pytest.approx(float(expected), rel=1e-5)
        assert float(positive.norm()) != pytest.approx(
            0.5 * float((positive - negative).norm()), 1e-2
        )


@pytest.mark.parametrize("recipe", [SCALED, NORM], ids=["scaled", "norm"])
def test_equal_prompts_leave_nothing_of_the_heads(pair: Pairs, recipe: str) -> None:
    """z - z is 0, and so is 0 in the length of z: what the projection puts out is its bias."""
    backbone = pair("gpt2").backbone
    batch = encoded(backbone, recipe, TEXTS)
    twice = replace(batch, auxiliary=replace(batch, auxiliary=None))
    module = projection(backbone.model, 2)
    with seen(module) as leaving:
        run(backbone, twice, recipe)
    text = torch.arange(len(TEXTS))
    last = torch.from_numpy(batch.token_ids.lengths - 1)
    assert torch.equal(leaving[-1][text, last], cast(Tensor, module.bias).expand(len(TEXTS), -1))


def test_the_auxiliary_prompt_stops_at_the_projection(pair: Pairs) -> None:
    """One whole pass per text, and the auxiliary one as far as it is needed."""
    backbone = pair("mistral").backbone
    batch = encoded(backbone, SCALED, TEXTS)
    blocks = block_list(backbone.model)
    with (
        entries(blocks[0]) as first,
        entries(blocks[1]) as second,
        entries(blocks[2]) as third,
        seen(projection(backbone.model, 2)) as projected,
    ):
        run(backbone, batch, SCALED)
    assert (len(first), len(second), len(third), len(projected)) == (2, 2, 1, 1)


def test_blocks_before_the_changed_one_need_no_auxiliary_prompt(pair: Pairs) -> None:
    backbone = pair("mistral").backbone
    batch = encoded(backbone, SCALED, TEXTS)
    whole = run(backbone, batch, SCALED)
    with entries(block_list(backbone.model)[0]) as first:
        short = run(backbone, batch, SCALED, "hidden=0-1,values=1")
    assert len(first) == 1
    assert all(torch.equal(rows, whole[name]) for name, rows in short.items())


@pytest.mark.parametrize("recipe", [SCALED, NORM], ids=["scaled", "norm"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2"])
def test_bfloat16_stays_near_float32(
    pair: Pairs, model_type: str, recipe: str, tiny_files: Callable[[str], BackboneFiles]
) -> None:
    """The head outputs differ by bfloat16's rounding before they are taken apart, so the block that is
    changed is the first one, whose inputs have not yet gathered any."""
    recipe = recipe.replace("block=2", "block=1")
    half = load_backbone(tiny_files(model_type), "bfloat16", "cpu")
    batch = encoded(half, recipe, TEXTS)
    ours, full = run(half, batch, recipe), run(pair(model_type).backbone, batch, recipe)
    plain = run(pair(model_type).backbone, batch, "plain")
    assert ours["hidden/1"].dtype == torch.bfloat16
    assert close(ours["hidden/1"].float(), full["hidden/1"], BF16_TOLERANCE)
    assert not close(ours["hidden/1"].float(), plain["hidden/1"], BF16_TOLERANCE)


def test_threads_with_other_settings_share_a_backbone(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    recipes = (SCALED, NORM, "plain", SCALED.replace("block=2", "block=1"))
    batches = {r: encoded(backbone, r, TEXTS) for r in recipes}
    threads_agree(backbone, batches)


def test_a_projection_that_does_not_run_is_an_error(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    blocks = block_list(backbone.model)
    batch = encoded(backbone, SCALED, TEXTS)
    blocks[1] = blocks[2]
    with pytest.raises(
        PermafrostError, match="block 2 of a 'llama' backbone did not run for the aux"
    ):
        run(backbone, batch, SCALED)
