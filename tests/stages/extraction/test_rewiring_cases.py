"""Rewiring, one case at a time: placeholders' embeddings, recipes, threads and errors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.recipes import OPENING, PLACEHOLDER
from permafrost.storage.errors import PermafrostError
from tests.stages.extraction.references import (
    DECODERS,
    FITTING,
    Pairs,
    block_list,
    close,
    encoded,
    per_text,
    prepended,
    resolved,
    threads_agree,
)
from tests.stages.extraction.rewired_runs import (
    HTP,
    INERT,
    STATES,
    agrees_with,
    grow,
    reference,
    run,
)
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS, each_family, save_model


def test_noise_is_drawn_from_the_seed_once_for_each_kind(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = prepended(backbone, FITTING[1:3])
    ids = torch.from_numpy(batch.token_ids.data)
    rows = torch.randn(2, 32, generator=torch.Generator().manual_seed(7))
    state = run(backbone, batch, "htp:start=1,stop=2,placeholder=noise,seed=7", STATES)["hidden/0"]
    assert torch.equal(
        state[ids == PLACEHOLDER], rows[0].expand(int((ids == PLACEHOLDER).sum()), -1)
    )
    assert torch.equal(state[ids == OPENING], rows[1].expand(int((ids == OPENING).sum()), -1))
    other = run(backbone, batch, "htp:start=1,stop=2,placeholder=noise,seed=8", STATES)["hidden/0"]
    assert torch.equal(state[ids >= 0], other[ids >= 0])
    assert not torch.equal(state[ids == OPENING], other[ids == OPENING])


def test_noise_is_a_row_of_the_embedding_matrix(pair: Pairs) -> None:
    """Gemma multiplies what it looks up; noise written into its matrix, as TP does, is multiplied too."""
    backbone = pair("gemma2").backbone
    batch = prepended(backbone, TEXTS[1:2])
    state = run(backbone, batch, "htp:start=1,stop=2,placeholder=noise", STATES)["hidden/0"]
    rows = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)) * 32**0.5
    # One rounding of the factor and one of the product, in float32.
    at = torch.from_numpy(batch.token_ids.data == OPENING)
    assert torch.allclose(state[at], rows[1].expand(int(at.sum()), -1), rtol=1e-6)


def test_an_embedding_narrower_than_the_states_is_projected_as_any_other(tmp_path: Path) -> None:
    folder = save_model("opt", tmp_path, word_embed_proj_dim=16)
    backbone = load_backbone(find_backbone(BackboneConfig(source=str(folder))), "float32", "cpu")
    batch = prepended(backbone)
    ours = run(backbone, batch, INERT, "hidden=0-2")
    grown = grow(folder)
    for i, ids in enumerate(batch.token_ids):
        known = torch.tensor([t if t >= 0 else grown.config.vocab_size - 1 for t in ids])
        with torch.no_grad():
            theirs = grown(input_ids=known[None], output_hidden_states=True)
        for k in range(N_LAYERS):
            assert close(per_text(ours[f"hidden/{k}"], batch)[i], theirs.hidden_states[k][0]), k


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_copies_are_made_all_at_once(pair: Pairs, model_type: str) -> None:
    """Chains and swaps read what was there before: no copy sees another's result."""
    both = pair(model_type)
    batch = prepended(both.backbone, FITTING[1:3])
    chains = [np.array([[5, 4], [4, 3], [7, 6], [6, 7]], np.int64), np.array([[9, 2]], np.int64)]
    batch = replace(batch, copies=type(batch.token_ids).from_arrays(chains))
    ours = run(both.backbone, batch)
    for i in range(2):
        agrees_with(ours, reference(both, batch, i), batch, i)


def test_a_text_without_copies_among_others_runs_as_usual(pair: Pairs) -> None:
    both = pair("qwen3")
    batch = prepended(both.backbone)
    assert batch.copies is not None
    copies = [rows if i != 1 else rows[:0] for i, rows in enumerate(batch.copies)]
    batch = replace(batch, copies=type(batch.token_ids).from_arrays(copies))
    ours = run(both.backbone, batch)
    for i in range(len(batch)):
        agrees_with(ours, reference(both, batch, i), batch, i)
    agrees_with(ours, reference(both, batch, 1, range(0)), batch, 1)


@pytest.mark.parametrize("model_type", each_family(DECODERS))
def test_one_block_for_the_whole_text_is_token_prepending(pair: Pairs, model_type: str) -> None:
    """Relation 26: bitwise the same with local placeholders only; another input with both kinds."""
    backbone = pair(model_type).backbone
    local = encoded(backbone, "htp:size=50,placement=local,start=1,stop=3", FITTING)
    single = "token_prepending:start=1,stop=3,source=text_end,template={placeholder}{text}"
    one = encoded(backbone, single, FITTING)
    expected = run(backbone, one, single, STATES)
    found = run(backbone, local, "htp:size=50,placement=local,start=1,stop=3", STATES)
    globally = run(
        backbone,
        encoded(backbone, "htp:size=50,placement=global,start=1,stop=3", FITTING),
        "htp:size=50,placement=global,start=1,stop=3",
        STATES,
    )
    both = encoded(backbone, "htp:size=50,start=1,stop=3", FITTING)
    full = run(backbone, both, "htp:size=50,start=1,stop=3", STATES)
    for name, rows in expected.items():
        assert torch.equal(found[name], rows), name
        assert torch.equal(globally[name], rows), name
    for i, two_states in enumerate(per_text(full["hidden/3"], both)):
        one_state = per_text(expected["hidden/3"], one)[i]
        assert len(two_states) == len(one_state) + 1
        # The text's first token, which has the placeholders in every window.
        first = one_state[int(one.span_start[i])]
        assert not close(two_states[int(both.span_start[i])], first, 1e-3)


@pytest.mark.parametrize("recipe", ["htp:size=3,block=tokens,start=1,stop=3", "token_prepending"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2"])
def test_recipes_run_as_the_reference_does(pair: Pairs, model_type: str, recipe: str) -> None:
    both = pair(model_type)
    batch = encoded(both.backbone, recipe)
    rewiring = resolved(both.backbone, recipe).rewiring
    assert rewiring is not None
    assert rewiring.stop > rewiring.start
    ours = run(both.backbone, batch, recipe)
    for i in range(len(batch)):
        theirs = reference(both, batch, i, range(rewiring.start, rewiring.stop))
        agrees_with(ours, theirs, batch, i)


def test_threads_with_other_recipes_share_a_backbone(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = prepended(backbone)
    recipes = (HTP, INERT, "htp:start=0,stop=3,placeholder=noise", "htp:start=2,stop=3")
    plain = encoded(backbone)
    threads_agree(backbone, {**dict.fromkeys(recipes, batch), "plain": plain})


def test_an_error_in_the_pass_leaves_nothing_behind(pair: Pairs) -> None:
    backbone = pair("gpt2").backbone
    plain = encoded(backbone)
    before = run(backbone, plain, "plain")
    batch = prepended(backbone)
    beyond = replace(batch, token_ids=replace(batch.token_ids, data=batch.token_ids.data + 1000))
    with pytest.raises(IndexError):
        run(backbone, beyond)
    after = run(backbone, plain, "plain")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_block_that_does_not_run_is_an_error(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    blocks = block_list(backbone.model)
    blocks[2] = blocks[1]
    with pytest.raises(PermafrostError, match=r"before the blocks \[2, 2\] instead of \[2, 3\]"):
        run(backbone, prepended(backbone), HTP, "hidden=final")


@pytest.mark.parametrize(
    ("copy", "says"),
    [([0, 99], "does not have"), ([-1, 0], "does not have"), ([3, 2], "two copies")],
)
def test_copies_that_cannot_be_are_a_bug(pair: Pairs, copy: list[int], says: str) -> None:
    backbone = pair("llama").backbone
    batch = prepended(backbone, TEXTS[:1])
    pairs = np.array([[4, 2], copy], np.int64)
    broken = replace(batch, copies=type(batch.token_ids).from_arrays([pairs]))
    with pytest.raises(AssertionError, match=says):
        run(backbone, broken)
