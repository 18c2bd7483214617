"""The last blocks from a stored layer against the whole backbone, for every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.finetune import by_length
from permafrost.stages.finetune.cached_below import CachedBelow, forget_below
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.entering import entering_array, require_above
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.recomputing import recomputing
from permafrost.stages.finetune.tuned_head import TunedHeadResult, finetune_head
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.stages.finetune.tuning import TUNINGS
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.extraction.tiny_models import each_family, save_model
from tests.stages.finetune.test_tuned_head import OPTIM, TEXTS, data_of, live, same

GRADIENTS = 1e-4
"""Of the largest number: rounding passes the wide weights of three blocks, forwards and back."""
Files = Callable[[str], BackboneFiles]
SHORT = {"bert", "gemma2", "gpt2", "modernbert", "mpnet", "opt"}
"""Both kinds of masks, windows, learned, relative and rotary positions, states in a tuple; deep tests have
the other families."""
TAKEN = np.array([3, 0, 11, 3, 7])
"""Texts of different lengths, one twice."""


def stored(backbone: Backbone, n_blocks: int, dtype: type = np.float32) -> InMemoryReader:
    """As a store holds what enters the last blocks: every token, special ones too."""
    batch, array = encoded(backbone, texts=TEXTS), entering_array(n_blocks, backbone.sizes)
    rows = forward(backbone, batch, [array], resolved(backbone, "plain"))[array].float().numpy()
    return InMemoryReader(array, Ragged(rows.astype(dtype), batch.token_ids.offsets), str(dtype))


def above(backbone: Backbone, below: CachedBelow, array: str) -> LiveReader:
    whole = live(backbone, array)
    return LiveReader(backbone, whole.recipe, whole.encoded, array, below)


def gradients(reader: LiveReader, n_blocks: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows, and the gradients of the last blocks' weights, those below being frozen."""
    tuning = TUNINGS.validate({"kind": "last_blocks", "n": n_blocks})
    tuned = tuning.attach(reader.backbone, torch.Generator())
    assert tuned is not None
    rows, _ = reader.rows(TAKEN)
    (rows @ torch.linspace(-1, 1, rows.shape[1])).sin().sum().backward()
    return rows.detach(), {n: p.grad for n, p in tuned.named_parameters() if p.grad is not None}


def agree(files: BackboneFiles, n_blocks: int, array: str) -> None:
    whole, last = (load_backbone(files, "float32", "cpu") for _ in range(2))
    below = CachedBelow(n_blocks, stored(last, n_blocks))
    forget_below(last, n_blocks)
    expected, theirs = gradients(live(whole, array), n_blocks)
    found, mine = gradients(above(last, below, array), n_blocks)
    assert close(found, expected)
    assert mine.keys() == theirs.keys()
    assert len(mine) >= 7
    for name, gradient in theirs.items():
        # It adds the same to every score of a query, so that its gradient is rounding.
        if not name.endswith(("k_proj/bias", "key/bias", "k_lin/bias", "attn/k/bias")):
            assert close(mine[name], gradient, GRADIENTS), name
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs.values())


@pytest.mark.parametrize(
    "family",
    [
        *sorted(SHORT),
        *(pytest.param(f, marks=pytest.mark.deep) for f in sorted(FAMILIES.keys() - SHORT)),
    ],
)
def test_gradients_are_those_of_the_whole_backbone(tiny_files: Files, family: str) -> None:
    agree(tiny_files(family), 2, "hidden/3")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_gradients_are_those_of_the_whole_backbone_where_passes_are_padded_on(
    tiny_files: Files, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(by_length, "tokens_of_a_kind", lambda _backbone: 8)
    agree(tiny_files(family), 2, "hidden/3")


@pytest.mark.deep
@pytest.mark.parametrize("family", each_family(FAMILIES))
def test_gradients_agree_with_one_block_and_with_all_of_them(
    pair: Callable[[str], Pair], tiny_files: Files, family: str
) -> None:
    has_norm = pair(family).backbone.sizes.has_final_norm
    agree(tiny_files(family), 1, "hidden/final" if has_norm else "hidden/3")
    # What enters the first of all blocks is what the embeddings give.
    agree(tiny_files(family), 3, "hidden/2")


def test_a_model_whose_states_are_wider_than_its_embeddings_agrees_too(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"do_layer_norm_before": False, "word_embed_proj_dim": 16}
    files = find_backbone(BackboneConfig(source=str(save_model("opt", tmp_path, **changes))))
    agree(files, 2, "hidden/3")


def test_any_number_of_blocks_below_hands_on(tmp_path: Path) -> None:
    """MPNet takes the first of what a block returns, which of bare states would be one axis less a block."""
    files = find_backbone(
        BackboneConfig(source=str(save_model("mpnet", tmp_path, num_hidden_layers=6)))
    )
    agree(files, 1, "hidden/6")


def test_nothing_below_is_needed(tiny_files: Files) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    below = CachedBelow(1, stored(backbone, 1))
    forget_below(backbone, 1)
    held = {n for n, p in backbone.model.named_parameters() if not p.is_meta}
    assert {n.split(".")[1] for n in held if n.startswith("layers.")} == {"2"}
    assert {n for n in held if not n.startswith("layers.")} == {"norm.weight"}
    rows, _ = above(backbone, below, "hidden/3").rows(TAKEN)
    assert torch.isfinite(rows).all()
    forwards = [vars(b).get("forward") for b in backbone.family.block_list(backbone.model)]
    assert forwards == [None, None, None]


def test_states_in_half_precision_differ_by_their_rounding(tiny_files: Files) -> None:
    backbone = load_backbone(tiny_files("bert"), "float32", "cpu")
    exact, _ = live(backbone, "hidden/3").rows(TAKEN)
    below = CachedBelow(2, stored(backbone, 2, np.float16))
    half, _ = above(backbone, below, "hidden/3").rows(TAKEN)
    away = ((half - exact).norm() / exact.norm()).item()
    assert 1e-5 < away < 5e-3


def fitted(files: BackboneFiles, below: str) -> TunedHeadResult:
    backbone = load_backbone(files, "float32", "cpu")
    config = TunedHeadConfig.model_validate(
        {
            "fit": {"head": {"kind": "glot", "hidden": 8}, "layer": "hidden/3", "seed": 3},
            "train": {"kind": "last_blocks", "n": 2, "below": below},
            "optim": {**OPTIM, "max_epochs": 1, "backbone_lr": 0.01},
        }
    )
    reader = live(backbone, "hidden/3")
    if below == "cached":
        rows = CachedBelow(2, stored(backbone, 2))
        forget_below(backbone, 2)
        reader = above(backbone, rows, "hidden/3")
    return finetune_head(config, data_of(reader), reader, SilentProgress())


def test_a_fit_is_that_of_the_live_form(tiny_files: Files, tmp_path: Path) -> None:
    expected = fitted(tiny_files("llama"), "live")
    found = fitted(tiny_files("llama"), "cached")
    assert same(found.fit, expected.fit)
    assert found.n_tuned == expected.n_tuned > 0
    whole = load_backbone(tiny_files("llama"), "float32", "cpu")
    before = {n: w.clone() for n, w in whole.model.state_dict().items()}
    assert found.backbone.keys() == expected.backbone.keys()
    for name, value in expected.backbone.items():
        own = name.removeprefix("weights.").replace("/", ".")
        moved = (value - before[own]).abs().max()
        assert (found.backbone[name] - value).abs().max() <= 0.05 * moved, name
    # What was trained from the cache is a change of the whole backbone.
    save_tuned_head(found, tmp_path)
    load_tuned_head(tmp_path).tune(whole)
    trained = {n.removeprefix("weights.").replace("/", "."): v for n, v in found.backbone.items()}
    state = whole.model.state_dict()
    assert all(torch.equal(state[n], v) for n, v in trained.items())


def test_blocks_that_are_computed_again_have_the_same_gradients(tiny_files: Files) -> None:
    backbone = load_backbone(tiny_files("bert"), "float32", "cpu")
    reader = above(backbone, CachedBelow(2, stored(backbone, 2)), "hidden/3")
    forget_below(backbone, 2)
    rows, kept = gradients(reader, 2)
    kept = {name: gradient.clone() for name, gradient in kept.items()}
    backbone.model.zero_grad()
    with recomputing(backbone):
        again, recomputed = gradients(reader, 2)
    assert torch.equal(again, rows)
    assert all(torch.equal(recomputed[name], gradient) for name, gradient in kept.items())


def test_rows_of_other_tokens_are_refused(tiny_files: Files) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    rows = stored(backbone, 1)
    lengths = rows.features.lengths
    spans = Ragged(rows.features.data[: lengths.sum() - len(lengths)], _offsets(lengths - 1))
    below = CachedBelow(1, InMemoryReader("hidden/2", spans))
    with pytest.raises(InputError, match=r"hidden/2 has \d+ rows of text \d+ .* every token"):
        above(backbone, below, "hidden/3").rows(TAKEN)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def test_an_array_that_nothing_trained_reaches_is_refused(
    pair: Callable[[str], Pair],
) -> None:
    sizes = pair("llama").backbone.sizes
    for array in ("hidden/2", "pooled/hidden_mean/3", "values/2", "hidden/final"):
        require_above(2, array, sizes)
    with pytest.raises(InputError, match=r"reads hidden/2, but .* the first block that runs is 3"):
        require_above(1, "hidden/2", sizes)


def test_models_with_graphs_run_the_whole_backbone() -> None:
    fields = {
        "model": {"kind": "text_only"},
        "loss": {"kind": "binary"},
        "train": {"kind": "last_blocks", "n": 1},
        "seed": 0,
    }
    FinetuneConfig.model_validate(fields)
    fields["train"] = {"kind": "last_blocks", "n": 1, "below": "cached"}
    with pytest.raises(ValueError, match="last_blocks with below: cached, which models of texts"):
        FinetuneConfig.model_validate(fields)
