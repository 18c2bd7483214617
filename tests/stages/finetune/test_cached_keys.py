"""One token from cached states against the whole pass, for every decoder family."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.cached_keys import read_behind
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.entering import entering_arrays
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import finetune
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import DECODERS, close, encoded, entries, resolved
from tests.stages.extraction.tiny_models import N_LAYERS, WINDOW, each_family, save_model
from tests.stages.finetune.graph_text_fits import tuned
from tests.stages.finetune.tiny_graphs import config_of, data_of, questions

Pairs = Callable[[str], Pair]


def entering(backbone: Backbone, batch: Encoded) -> list[Ragged]:
    """As a float32 store has them."""
    arrays = entering_arrays(backbone.sizes)
    rows = forward(backbone, batch, arrays, resolved(backbone, "plain"))
    return [Ragged(rows[a].float().cpu().numpy(), batch.token_ids.offsets) for a in arrays]


def graph_tokens(backbone: Backbone, n: int) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randn(n, embedding_width(backbone), generator=draw)
    return tokens.to(backbone.device).requires_grad_(True)


def whole(backbone: Backbone, batch: Encoded, tokens: Tensor) -> Tensor:
    return read_states(backbone, batch, resolved(backbone, "plain"), "last", tokens, "last")


def agree(backbone: Backbone, batch: Encoded) -> None:
    """States and gradients by the tokens."""
    tokens = graph_tokens(backbone, len(batch))
    weights = torch.linspace(-1, 1, 32, device=backbone.device)
    found = read_behind(backbone, entering(backbone, batch), tokens)
    expected = whole(backbone, batch, tokens)
    assert found.dtype == torch.float32
    assert close(found.detach(), expected.detach())
    (mine,) = torch.autograd.grad((found @ weights).sin().sum(), tokens)
    (theirs,) = torch.autograd.grad((expected @ weights).sin().sum(), tokens)
    assert (theirs.abs().sum(1) > 0).all()
    assert close(mine, theirs)


@pytest.mark.parametrize("family", each_family(DECODERS))
def test_one_token_from_the_cache_is_that_of_the_whole_pass(pair: Pairs, family: str) -> None:
    backbone = pair(family).backbone
    batch = encoded(backbone)
    lengths = batch.token_ids.lengths
    assert lengths.min() < WINDOW < lengths.max() - 1, "on both sides of the windows"
    before = {n: w.clone() for n, w in backbone.model.state_dict().items()}
    forwards = [vars(b).get("forward") for b in backbone.family.block_list(backbone.model)]
    agree(backbone, batch)
    # Texts of one length need no padding, and so another mask.
    agree(backbone, batch.take(np.array([1, 1])))
    after = backbone.model.state_dict()
    assert all(torch.equal(after[n], w) for n, w in before.items())
    assert all(p.grad is None for p in backbone.model.parameters())
    assert [vars(b).get("forward") for b in backbone.family.block_list(backbone.model)] == forwards


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        # OPT-350m: norms after each block, and embeddings that are narrower than the states.
        ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
        ("llama", {"num_key_value_heads": 1}),
    ],
)
def test_other_configs_of_a_family_agree_too(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    files = find_backbone(BackboneConfig(source=str(save_model(family, tmp_path, **changes))))
    backbone = load_backbone(files, "float32", "cpu")
    agree(backbone, encoded(backbone))


def test_only_the_token_passes_through_the_feed_forward_layers(pair: Pairs) -> None:
    backbone = pair("mistral").backbone
    batch = encoded(backbone)
    states, tokens = entering(backbone, batch), graph_tokens(backbone, len(batch))
    block = backbone.family.block_list(backbone.model)[1]
    shapes: list[tuple[int, ...]] = []
    handle = block.get_submodule("mlp").register_forward_hook(
        lambda m, args, output: shapes.append(tuple(output.shape))
    )
    with entries(block.get_submodule("self_attn.k_proj")) as keys:
        read_behind(backbone, states, tokens)
    handle.remove()
    assert shapes == [(len(batch), 1, backbone.sizes.d_model)]
    assert len(keys) == 2, "of the texts, and of the tokens"


def test_states_of_other_tokens_are_refused(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = encoded(backbone)
    states = entering(backbone, batch)
    assert len(states) == N_LAYERS
    lengths = states[0].lengths.copy()
    lengths[1] -= 1
    cut = Ragged(states[1].data[: lengths.sum()], np.concatenate([[0], np.cumsum(lengths)]))
    with pytest.raises(InputError, match=r"hidden/1 has \d+ tokens of text 1 .* hidden/0 has \d+"):
        read_behind(backbone, [states[0], cut, states[2]], graph_tokens(backbone, len(batch)))


def with_entering(data: FinetuneData) -> FinetuneData:
    """With what a store would hold of every token."""
    assert data.live is not None
    rows = entering(data.live.backbone, data.live.texts)
    readers = tuple(InMemoryReader(f"hidden/{k}", r) for k, r in enumerate(rows))
    return replace(data, features=replace(data.features, entering=readers))


def test_training_from_the_cache_is_training_by_whole_passes(pair: Pairs) -> None:
    data = data_of(questions(), pair("gemma2").backbone)
    config = config_of(data.corpus, {"kind": "gt2vec", "graph_token": "last"})
    assert config.reads_token_states
    whole_pass, stored = finetune(config, data, SilentProgress()), with_entering(data)
    calls: list[int] = []
    backbone = pair("gemma2").backbone
    mlp = backbone.family.block_list(backbone.model)[0].get_submodule("mlp")
    handle = mlp.register_forward_hook(lambda m, args, output: calls.append(output.shape[1]))
    result = finetune(config, stored, SilentProgress())
    handle.remove()
    assert set(calls) == {1}
    assert [r.train_loss for r in result.history] == pytest.approx(
        [r.train_loss for r in whole_pass.history], rel=1e-3
    )
    model = tuned(result)
    one, other = (score_finetuned(FinetuneScoreConfig(), model, d) for d in (data, stored))
    assert one.metrics == other.metrics


def test_a_tuned_backbone_takes_the_whole_pass_and_only_the_token_is_read() -> None:
    last: dict[str, object] = {"kind": "gt2vec", "graph_token": "last"}
    assert not config_of(questions(), last, train="lora").reads_token_states
    first = config_of(questions(), {**last, "graph_token": "first"})
    assert not first.reads_token_states
    with pytest.raises(ValueError, match=r"stands last, .* and read is mean; set read: last"):
        config_of(questions(), last, read="mean")
