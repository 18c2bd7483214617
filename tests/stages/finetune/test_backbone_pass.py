"""Texts with a graph token through every family, against transformers' own pass over token ids."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.token_place import (
    TokenPlace,
    require_fits,
    require_room_for_token,
    state_array,
)
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import DECODERS, close, encoded, resolved
from tests.stages.extraction.tiny_models import each_family

Pairs = Callable[[str], Pair]
FAMILY_NAMES = sorted(FAMILIES)
WORD = 9
"""A token of every vocabulary."""


def states(pair: Pair, ids: Tensor) -> Tensor:
    """transformers' last states of one text `[t, d]`."""
    with torch.no_grad():
        return pair.reference(input_ids=ids[None]).last_hidden_state[0]


def one_by_one(batch: Encoded) -> list[Tensor]:
    ids = batch.token_ids
    return [
        torch.from_numpy(ids.data[a:b].astype(np.int64))
        for a, b in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)
    ]


def word_tokens(pair: Pair, n: int) -> Tensor:
    """The embedding of WORD as n graph tokens."""
    layer = pair.backbone.model.get_input_embeddings()
    return layer(torch.full((n,), WORD)).detach()  # type: ignore[misc]


@pytest.mark.few(5)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_without_a_graph_token_it_is_the_cached_row(pair: Pairs, family: str) -> None:
    both = pair(family)
    batch, recipe = encoded(both.backbone), resolved(both.backbone, "plain")
    for read in ("last", "mean"):
        array = state_array(read, both.backbone.sizes)
        cached = forward(both.backbone, batch, [array], recipe)[array].float()
        found = read_states(both.backbone, batch, recipe, read)
        assert torch.equal(found, cached), f"{array} of the same batch"
    expected = torch.stack([states(both, ids)[-1] for ids in one_by_one(batch)])
    assert close(read_states(both.backbone, batch, recipe, "last"), expected)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_words_embedding_as_graph_token_is_that_word(pair: Pairs, family: str) -> None:
    both = pair(family)
    batch, recipe = encoded(both.backbone), resolved(both.backbone, "plain")
    tokens = word_tokens(both, len(batch))
    inputs = [torch.cat([torch.tensor([WORD]), ids]) for ids in one_by_one(batch)]
    expected = [states(both, ids) for ids in inputs]
    last = read_states(both.backbone, batch, recipe, "last", tokens)
    assert close(last, torch.stack([rows[-1] for rows in expected]))
    mean = read_states(both.backbone, batch, recipe, "mean", tokens)
    assert close(mean, torch.stack([rows[1:].mean(0) for rows in expected]))
    without = read_states(both.backbone, batch, recipe, "last")
    assert not close(last, without), "the token is seen"


@pytest.mark.parametrize("family", each_family(DECODERS))
def test_a_token_that_stands_last_is_read_itself(pair: Pairs, family: str) -> None:
    both = pair(family)
    batch, recipe = encoded(both.backbone), resolved(both.backbone, "plain")
    tokens = word_tokens(both, len(batch))
    inputs = [torch.cat([ids, torch.tensor([WORD])]) for ids in one_by_one(batch)]
    expected = torch.stack([states(both, ids)[-1] for ids in inputs])
    assert close(read_states(both.backbone, batch, recipe, "last", tokens, "last"), expected)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bert", "mpnet"])
def test_the_input_is_one_token_longer_and_in_a_decoder_the_graph_sees_no_text(
    pair: Pairs, family: str
) -> None:
    backbone = pair(family).backbone
    recipe = resolved(backbone, "plain")
    batch = encoded(backbone, texts=("snow melts under the sun",))
    token = word_tokens(pair(family), 1)
    lengths: list[int] = []
    first: list[Tensor] = []

    def look(_: object, args: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        rows = output if isinstance(output, Tensor) else output[0]
        lengths.append(rows.shape[1])
        first.append(rows[0, 0].detach())

    handle = backbone.family.block_list(backbone.model)[-2].register_forward_hook(look)
    try:
        read_states(backbone, batch, recipe, "mean", token)
        ids = batch.token_ids.data.copy()
        ids[1:] = ids[1:][::-1]
        other = Encoded(
            Ragged(ids, batch.token_ids.offsets),
            batch.span,
            batch.span_start,
            batch.span_end,
            batch.truncated,
        )
        read_states(backbone, other, recipe, "mean", token)
    finally:
        handle.remove()
    assert lengths == [len(ids) + 1] * 2
    assert torch.equal(*first) == backbone.family.is_decoder


@pytest.mark.parametrize(
    ("family", "place"),
    [*((family, "first") for family in FAMILY_NAMES), *((family, "last") for family in DECODERS)],
)
def test_gradients_reach_the_graph_token_and_no_weight_changes(
    pair: Pairs, family: str, place: TokenPlace
) -> None:
    backbone = pair(family).backbone
    before = {n: w.clone() for n, w in backbone.model.state_dict().items()}
    # Short enough for sliding windows to reach from one end to the other.
    batch, recipe = encoded(backbone, texts=("ice", "sun")), resolved(backbone, "plain")
    tokens = word_tokens(pair(family), len(batch)).requires_grad_(True)
    optimizer = torch.optim.SGD([tokens], lr=0.1)
    z = read_states(backbone, batch, recipe, "last", tokens, place)
    z.square().sum().backward()
    optimizer.step()
    assert tokens.grad is not None
    assert (tokens.grad.abs().sum(1) > 0).all(), "every text's token gets one"
    assert all(w.grad is None for w in backbone.model.parameters())
    after = backbone.model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_gradients_are_those_of_differences(pair: Pairs) -> None:
    backbone = pair("gemma2").backbone
    batch, recipe = encoded(backbone, texts=("ice", "snow melts")), resolved(backbone, "plain")
    tokens = word_tokens(pair("gemma2"), 2).requires_grad_(True)
    direction = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(1))

    def value(shift: float) -> Tensor:
        moved = tokens + shift * direction
        return read_states(backbone, batch, recipe, "last", moved).sin().sum()

    (gradient,) = torch.autograd.grad(value(0.0), tokens)
    with torch.no_grad():
        difference = (value(1e-2) - value(-1e-2)) / 2e-2
    assert float((gradient * direction).sum()) == pytest.approx(float(difference), rel=2e-2)


@pytest.mark.parametrize("family", ["llama", "bert", "mpnet"])
def test_with_a_gradient_low_precision_on_a_cpu_attends_in_full(
    pair: Pairs, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pair(family)
    batch, recipe = encoded(both.backbone), resolved(both.backbone, "plain")
    attend, seen = (
        torch.nn.functional.scaled_dot_product_attention,
        list[tuple[bool, torch.dtype]](),
    )

    def watched(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append((torch.is_autocast_enabled("cpu"), query.dtype))
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    tokens = word_tokens(both, len(batch)).float().requires_grad_(True)
    slopes: list[Tensor] = []
    for is_low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            z = read_states(both.backbone, batch, recipe, "last", tokens)
        slopes.append(torch.autograd.grad(z.square().sum(), tokens)[0].flatten())
    assert {*seen} == {(False, torch.float32)}
    full, low = slopes
    assert not torch.equal(full, low)
    assert float(torch.nn.functional.cosine_similarity(full, low, dim=0)) > 0.99
    seen.clear()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        read_states(both.backbone, batch, recipe, "last", tokens)
    assert {is_low for is_low, _ in seen} == {True}


@pytest.mark.parametrize("family", ["bert", "mistral", "mpnet"])
def test_a_zero_token_is_the_text_with_a_zero_embedding_before_it(pair: Pairs, family: str) -> None:
    both = pair(family)
    batch, recipe = encoded(both.backbone), resolved(both.backbone, "plain")
    zeros = torch.zeros(len(batch), embedding_width(both.backbone))
    found = read_states(both.backbone, batch, recipe, "last", zeros)
    layer = both.reference.get_input_embeddings()
    for row, ids in zip(found, one_by_one(batch), strict=True):
        with torch.no_grad():
            words = layer(ids[None])  # type: ignore[misc]
            embedded = torch.cat([torch.zeros_like(words[:, :1]), words], dim=1)
            expected = both.reference(inputs_embeds=embedded).last_hidden_state[0, -1]
        assert close(row, expected)


def sizes(**changes: object) -> BackboneSizes:
    base: dict[str, object] = {
        "model_type": "bert",
        "n_layers": 3,
        "d_model": 32,
        "d_value": 32,
        "n_attn_heads": 4,
        "n_kv_heads": 4,
        "d_head": 8,
        "has_final_norm": False,
        "is_decoder": False,
        "max_positions": 64,
    }
    return BackboneSizes.model_validate({**base, **changes})


def test_what_does_not_fit_is_refused(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    plain = resolved(backbone, "plain")
    require_fits(plain, sizes(), "first")
    with pytest.raises(InputError, match=r"a bert encoder; use graph_token: first"):
        require_fits(plain, sizes(), "last")
    with pytest.raises(InputError, match=r"recipe 'htp' changes the forward pass"):
        require_fits(resolved(backbone, "htp"), backbone.sizes, "first")


def test_a_text_that_leaves_no_position_for_the_graph_token_is_refused(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = encoded(backbone)
    lengths = batch.token_ids.lengths
    longest, texts = int(lengths.max()), [f"text {i}" for i in range(len(lengths))]
    require_room_for_token(batch, texts, sizes(max_positions=longest + 1))
    n, first = int((lengths == longest).sum()), int(lengths.argmax())
    with pytest.raises(
        InputError,
        match=rf"^{n} of {len(texts)} texts leave .* 'text {first}': they have {longest} tokens .* "
        rf"{longest} positions.* shorten them to {longest - 1} tokens",
    ):
        require_room_for_token(batch, texts, sizes(max_positions=longest))
