"""Attention maps against transformers' own weights, and what is told of where attention goes."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from permafrost.stages.extraction.recipes import encode
from permafrost.stages.metrics.attention_map import TOKENS, WEIGHTS, read_attention_map
from permafrost.stages.sensitivity.attention_map import MappedAttention, map_attention
from permafrost.stages.sensitivity.attention_map_config import (
    AttentionMapConfig,
    require_one_pass,
)
from permafrost.storage.errors import CorruptDataError, InputError
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import ROW_TOLERANCE, resolved
from tests.stages.extraction.tiny_models import N_LAYERS

Pairs = Callable[[str], Pair]
TEXT = "Snow melts in the wind. The sun is warm. Ice breaks."


def mapped(both: Pair, recipe: str = "plain", **fields: object) -> MappedAttention:
    config = AttentionMapConfig.model_validate({"text": TEXT, **fields})
    return map_attention(config, both.backbone, resolved(both.backbone, recipe), 100, [])


def values(found: MappedAttention, measure: str) -> list[float]:
    return [p.value for p in found.curves.points if p.measure == f"attention of {measure}"]


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert", "mpnet"])
def test_a_map_is_transformers_own_attention_averaged_over_heads(
    pair: Pairs, model_type: str
) -> None:
    both = pair(model_type)
    found = mapped(both)
    recipe = resolved(both.backbone, "plain")
    ids = encode(recipe, both.backbone.tokenizer, [TEXT], 64).token_ids[0]
    with torch.no_grad():
        theirs = both.reference(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True
        ).attentions
    assert theirs is not None
    assert list(found.map.weights) == [1, 2, 3]
    for block, ours in found.map.weights.items():
        assert np.abs(ours - theirs[block - 1][0].mean(0).numpy()).max() <= ROW_TOLERANCE
    assert found.map.tokens == tuple(both.backbone.tokenizer.convert_ids_to_tokens(ids.tolist()))
    tokenizer = both.backbone.tokenizer
    special = (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    own = [i for i, token in enumerate(ids.tolist()) if token not in special]
    first = [float(a[0].mean(0)[own, 0].mean()) for a in theirs]
    assert values(found, "own tokens on the first token") == pytest.approx(first, abs=1e-5)


@pytest.mark.parametrize("recipe", ["plain", "htp", "echo", "token_prepending"])
def test_ends_of_sentences_and_placeholders_are_marked(pair: Pairs, recipe: str) -> None:
    """Three sentences; none are marked where words around a text change its tokens, as with the tiny model's
    spelling of a space before the second copy."""
    both = pair("llama")
    found = mapped(both, recipe)
    tokens = found.map.tokens
    n_ends = {"plain": 3, "htp": 3, "echo": 0}.get(recipe)
    if n_ends is not None:
        assert len(found.map.ends) == n_ends
        assert all(tokens[i] == tokens[found.map.ends[0]] for i in found.map.ends)
    n_placeholders = {"plain": 0, "htp": 6, "echo": 0, "token_prepending": 1}[recipe]
    assert len(found.map.placeholders) == n_placeholders
    assert all(tokens[i] in ("<PST>", "<B-PST>") for i in found.map.placeholders)
    has_curve = bool(values(found, "own tokens on placeholders"))
    assert has_curve == (n_placeholders > 0)


def test_shares_are_sums_over_the_map(pair: Pairs) -> None:
    found = mapped(pair("llama"), "htp")
    kept, ends = found.map, found.map.ends
    own = [i for i in range(1, ends[-1] + 1) if i not in kept.placeholders]
    asked = [
        sum(kept.weights[2][end, k] for k in own if k <= before) for before, end in pairwise(ends)
    ]
    shares = values(found, "ends of sentences on earlier sentences")
    assert len(shares) == N_LAYERS
    assert shares[1] == pytest.approx(np.mean(asked), abs=1e-6)
    held = [sum(kept.weights[2][i, k] for k in kept.placeholders) for i in own]
    assert values(found, "own tokens on placeholders")[1] == pytest.approx(np.mean(held), abs=1e-6)


def test_a_map_comes_back_from_its_folder(pair: Pairs, tmp_path: Path) -> None:
    found = mapped(pair("llama"), "htp", blocks=(2,)).map
    assert read_attention_map(tmp_path) is None
    found.save(tmp_path)
    again = read_attention_map(tmp_path)
    assert again is not None
    assert (again.tokens, again.ends, again.placeholders) == (
        found.tokens,
        found.ends,
        found.placeholders,
    )
    assert list(again.weights) == [2]
    assert np.array_equal(again.weights[2], found.weights[2])
    (tmp_path / WEIGHTS).write_bytes(b"PAR1")
    with pytest.raises(CorruptDataError, match="delete the artifact and run the probe again"):
        read_attention_map(tmp_path)
    found.save(tmp_path)
    (tmp_path / TOKENS).write_text(
        '{"tokens": ["a"], "ends": [], "placeholders": [], "blocks": [2]}'
    )
    with pytest.raises(CorruptDataError):
        read_attention_map(tmp_path)


def test_a_blank_text_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match="' ' is blank; give a text with words"):
        AttentionMapConfig(text=" ")


def test_a_text_is_cut_drawn_or_refused(pair: Pairs) -> None:
    both = pair("llama")
    cut = mapped(both, max_tokens=7).map
    assert len(cut.tokens) == 7
    assert cut.tokens == mapped(both).map.tokens[:7]
    recipe = resolved(both.backbone, "plain")
    drawn = AttentionMapConfig(min_words=3, blocks=(1,))
    texts = ["ice", TEXT]
    chosen = map_attention(drawn, both.backbone, recipe, 100, texts).map
    assert chosen.tokens == mapped(both).map.tokens
    far = drawn.model_copy(update={"min_words": 99})
    with pytest.raises(InputError, match="none of 2 texts has 99 words"):
        map_attention(far, both.backbone, recipe, 100, texts)
    with pytest.raises(InputError, match="blocks has 4, but this llama backbone has blocks 1 to 3"):
        mapped(both, blocks=(1, 4))
    with pytest.raises(InputError, match="heads of one block by those of another prompt"):
        require_one_pass(resolved(both.backbone, "contrastive:block=1"))
    assert AttentionMapConfig().read_blocks(both.backbone.sizes) == (1, 2, 3)
