"""Our module in the place of MPNet's attention, against transformers' own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, MPNetTokenizer

from permafrost.stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
    load_tokenizer,
)
from permafrost.stages.extraction.biased_attention import BiasedSelfAttention
from permafrost.stages.extraction.recipes import PlainRecipe, PromptBertRecipe, encode
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    EVERYTHING,
    ROW_TOLERANCE,
    block_list,
    close,
    encoded,
    per_text,
    reference_run,
    run,
)
from tests.stages.extraction.tiny_models import N_HEADS, N_LAYERS, TEXTS, WORDS, save_model

Pairs = Callable[[str], Pair]
GRADIENTS = 1e-4
"""Of the largest number of a weight: rounding passes the wide weights of three blocks, forwards and back."""


def test_it_has_the_weights_under_the_names_of_the_original(pair: Pairs) -> None:
    both = pair("mpnet")
    ours, theirs = both.backbone.model.state_dict(), both.reference.state_dict()
    assert ours.keys() == {name for name in theirs if not name.startswith("pooler")}
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    modules = [m for m in both.backbone.model.modules() if isinstance(m, BiasedSelfAttention)]
    assert len(modules) == N_LAYERS
    assert not any(m.training for m in modules)


def test_rows_and_states_have_the_bias(tiny_files: Callable[[str], BackboneFiles]) -> None:
    """Rows without it are others: what a hook that does not pass it on would give."""
    backbone = load_backbone(tiny_files("mpnet"), "float32", "cpu")
    batch = encoded(backbone)
    table = backbone.model.get_parameter("encoder.relative_attention_bias.weight")
    before = run(backbone, "attention_rows=1,hidden=1", batch)
    with torch.no_grad():
        table.zero_()
    after = run(backbone, "attention_rows=1,hidden=1", batch)
    away = (after["attention_rows/1"] - before["attention_rows/1"]).abs().max()
    assert float(away) > 1000 * ROW_TOLERANCE
    assert not close(after["hidden/1"], before["hidden/1"])


@pytest.mark.parametrize("length", [40, 300])
def test_distances_are_told_apart_as_transformers_does(tmp_path: Path, length: int) -> None:
    """Buckets of one distance, of several, and beyond 128 the last one; wide, so that they are seen."""
    folder = save_model("mpnet", tmp_path, max_position_embeddings=512)
    backbone = load_backbone(find_backbone(BackboneConfig(source=str(folder))), "float32", "cpu")
    reference = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for model in (backbone.model, reference):
        with torch.no_grad():
            model.get_parameter("encoder.relative_attention_bias.weight").mul_(8)
    both = Pair(backbone, reference)
    batch = encoded(backbone, texts=(" ".join(WORDS * 10), TEXTS[1]), max_length=length)
    assert batch.token_ids.lengths[0] == length
    ours = run(backbone, EVERYTHING, batch)
    for i, ids in enumerate(batch.token_ids):
        theirs = reference_run(both, ids)
        for k in range(1, N_LAYERS + 1):
            assert close(per_text(ours[f"hidden/{k}"], batch)[i], theirs.hidden_states[k][0])
            row = per_text(ours[f"attention_rows/{k}"], batch)[i]
            assert float((row - theirs.attentions[k - 1][0, :, 0].T).abs().max()) <= ROW_TOLERANCE


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_gradients_of_all_weights_are_transformers_own(
    tiny_files: Callable[[str], BackboneFiles], precision: str
) -> None:
    """Of the table of biases too, which every block reads. Under autocast the pass attends in float32; with
    weights in bfloat16 the bias is in another dtype then."""
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    backbone = load_backbone(tiny_files("mpnet"), dtype, "cpu")
    reference = AutoModel.from_pretrained(backbone.files.folder, attn_implementation="eager").eval()
    ids = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 4, 2, 1, 1]])
    found: list[dict[str, Tensor]] = []
    for model in (backbone.model, reference):
        model.requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "float32"):
            out = model(input_ids=ids, attention_mask=(ids != 1).long()).last_hidden_state
        (out.float() * (ids != 1)[..., None]).sin().sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    assert "encoder.relative_attention_bias.weight" in ours
    for name, gradient in ours.items():
        if precision == "float32":
            # What the keys' bias gets is rounding: a softmax does not depend on it.
            least = 1e-3 if name.endswith("attn.k.bias") else 0.0
            assert (gradient - theirs[name]).abs().max() <= GRADIENTS * max(
                float(theirs[name].abs().max()), least
            ), name
        elif not name.endswith("attn.k.bias"):
            alike = torch.nn.functional.cosine_similarity(
                gradient.float().flatten(), theirs[name].flatten(), dim=0
            )
            assert float(alike) > 0.95, name


def test_without_a_bias_and_a_mask_it_is_plain_attention(pair: Pairs) -> None:
    block: nn.Module = block_list(pair("mpnet").reference)[0]
    theirs = block.get_submodule("attention.attn")
    ours = BiasedSelfAttention(theirs).eval()
    states = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(2, N_HEADS, 7, 7, generator=torch.Generator().manual_seed(2)) * 3
    hidden = torch.zeros(2, 1, 7, 7)
    hidden[1, ..., 4:] = float("-inf")
    with torch.no_grad():
        for added in (None, bias):
            for mask in (None, hidden):
                seen = None if mask is None else mask == 0
                (expected,) = theirs(states, mask, added)
                attended, weights = ours(states, seen, added)
                assert close(attended, expected)
                assert weights is None


def mpnet_tokenizer() -> MPNetTokenizer:
    """The class of released checkpoints, with their special tokens at their places."""
    names = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "[UNK]", "##s", '"', ":", "sentence", "means"]
    names += ["this", "<mask>"]
    return MPNetTokenizer({name: i for i, name in enumerate(names)}, model_max_length=60)


def test_the_tokens_are_those_of_mpnets_own_tokenizer(tmp_path: Path) -> None:
    folder = save_model("mpnet", tmp_path)
    own = mpnet_tokenizer()
    own.save_pretrained(folder)
    files = find_backbone(BackboneConfig(source=str(folder)))
    tokenizer = load_tokenizer(files)
    texts = ["Snow melts", "the deep lakes freeze", "ice"]
    batch = encode(PlainRecipe(specials="exclude"), tokenizer, texts, 60)
    assert [ids.tolist() for ids in batch.token_ids] == own(texts)["input_ids"]
    for ids, span in zip(batch.token_ids, batch.span, strict=True):
        assert (ids[0], ids[-1]) == (0, 2)
        assert span.tolist() == [False, *[True] * (len(ids) - 2), False]
    # The mask takes the space before it along, and is one token all the same.
    masked = encode(PromptBertRecipe(), tokenizer, texts, 60)
    for ids, span in zip(masked.token_ids, masked.span, strict=True):
        assert ids[span].tolist() == [own.mask_token_id]
    backbone = load_backbone(files, "float32", "cpu")
    reference = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ours = run(backbone, "hidden=3", batch)["hidden/3"]
    # Batched and padded by the tokenizer itself, on the right.
    padded = own(texts, padding=True, return_tensors="pt")
    assert (padded["input_ids"] == 1).any()
    with torch.no_grad():
        states = reference(**padded).last_hidden_state
    assert close(ours, states[padded["attention_mask"].bool()])


def test_a_padding_token_within_a_text_is_not_counted_as_in_transformers(pair: Pairs) -> None:
    both = pair("mpnet")
    batch = encoded(both.backbone, texts=("snow <pad> melts slowly", TEXTS[1]))
    assert 1 in batch.token_ids[0].tolist()
    ours = per_text(run(both.backbone, "hidden=3", batch)["hidden/3"], batch)[0]
    ids = torch.from_numpy(batch.token_ids[0].astype(np.int64))[None]
    with torch.no_grad():
        theirs = both.reference(input_ids=ids).last_hidden_state[0]
    assert close(ours, theirs)
