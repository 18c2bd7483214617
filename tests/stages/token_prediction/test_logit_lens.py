"""The logit lens against transformers' own model with eager attention, one text at a time."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone, load_backbone
from permafrost.stages.extraction.recipes import (
    Encoded,
    Recipe,
    encode,
    parse_recipe,
    resolve_recipe,
)
from permafrost.stages.extraction.unembedding import read_unembedding
from permafrost.stages.token_prediction import LensScores, LogitLensConfig, logit_lens
from permafrost.stages.token_prediction.ahead import inputs_to, vectors_by_later_weights
from permafrost.stages.token_prediction.config import Vector
from permafrost.stages.token_prediction.prefix_draws import Prefixes, draw_prefixes
from permafrost.stages.token_prediction.vectors import token_vectors
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.extraction.references import (
    STATE_TOLERANCE,
    block_list,
    close,
    per_text,
    projection,
    seen,
    seen_before,
    tensor,
    value_module,
    value_output,
)
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS, save_model
from tests.stages.token_prediction.causal_models import save_causal
from tests.stages.token_prediction.conftest import Decoder

Decoders = Callable[[str], Decoder]
MODELS = ["llama", "gpt2", "gpt_neox", "gemma2", "qwen3", "opt"]
QUIET = SilentProgress()
OFFSETS = (1, 2, 4)
ALL_TEXTS = LogitLensConfig(n_texts=99, min_words=1, offsets=OFFSETS)


def plain(found: Decoder, name: str = "plain") -> Recipe:
    return resolve_recipe(parse_recipe(name), found.backbone.sizes)


def encoded(found: Decoder, texts: tuple[str, ...] = TEXTS) -> Encoded:
    return encode(plain(found), found.backbone.tokenizer, texts, 60)


def weights(module: nn.Module) -> tuple[Tensor, Tensor | float]:
    """`z @ weight + bias` is the output; GPT-2 keeps [in, out]."""
    weight = cast(Tensor, module.weight).detach()
    bias = cast(Tensor | None, module.bias)
    is_conv = type(module).__name__ == "Conv1D"
    return weight if is_conv else weight.T, 0.0 if bias is None else bias.detach()


def reference(found: Decoder, ids: np.ndarray) -> dict[Vector, list[Tensor]]:
    """By kind of vector, those of every layer, `[T, D]`, from the whole model's own modules."""
    model, sizes = cast(nn.Module, found.whole.base_model), found.backbone.sizes
    projections = [projection(model, block) for block in range(1, N_LAYERS + 1)]
    with ExitStack() as stack, torch.no_grad():
        entering = [stack.enter_context(seen_before(block)) for block in block_list(model)]
        leaving = stack.enter_context(seen(block_list(model)[-1]))
        attention = [stack.enter_context(seen(module)) for module in projections]
        passed = [stack.enter_context(seen(value_module(model, k + 1))) for k in range(N_LAYERS)]
        found.whole.base_model(input_ids=tensor(ids)[None])
    last = leaving[0][0] if isinstance(leaving[0], tuple) else leaving[0]
    each = sizes.n_attn_heads // sizes.n_kv_heads
    means = []
    for module, values in zip(projections, passed, strict=True):
        weight, bias = weights(module)
        rows = []
        for t in range(len(ids)):
            mean = value_output(sizes, values[0][0])[: t + 1].mean(0)
            heads = mean.unflatten(0, (sizes.n_kv_heads, -1))
            z = torch.cat([heads[h // each] for h in range(sizes.n_attn_heads)])
            rows.append(z @ weight + bias)
        means.append(torch.stack(rows))
    return {
        "hidden": [*(states[0][0] for states in entering), last.reshape(len(ids), -1)],
        "aligned_va": means,
        "aligned_wva": [out[0].reshape(len(ids), -1) for out in attention],
    }


def own_norm(model: nn.Module) -> nn.Module:
    names = ("norm", "ln_f", "final_layer_norm", "decoder.final_layer_norm")
    return next(m for n, m in model.named_modules() if n in names)


@pytest.mark.few(6)
@pytest.mark.parametrize("vector", ["hidden", "aligned_va", "aligned_wva"])
@pytest.mark.parametrize("model_type", MODELS)
def test_vectors_are_those_of_the_models_own_modules(
    decoder: Decoders, model_type: str, vector: Vector
) -> None:
    found = decoder(model_type)
    batch = encoded(found)
    theirs = [reference(found, ids)[vector] for ids in batch.token_ids]
    first = 0 if vector == "hidden" else 1
    layers = []
    for layer, rows in token_vectors(found.backbone, batch, plain(found), vector):
        layers.append(layer)
        for i, mine in enumerate(per_text(rows, batch)):
            assert close(mine, theirs[i][layer - first])
    assert layers == list(range(first, N_LAYERS + 1))


@pytest.mark.few(3)
@pytest.mark.parametrize("vector", ["hidden", "aligned_va", "aligned_wva"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_mrr_is_that_of_a_loop(decoder: Decoders, model_type: str, vector: Vector) -> None:
    """Ranks can differ where two scores differ by rounding only, so each reciprocal rank has a lowest and a
    highest value: with every token within the tolerance before the target, and with none of them."""
    found = decoder(model_type)
    config = ALL_TEXTS.model_copy(update={"vector": vector, "cutoff": 50})
    ours = logit_lens(config, found.backbone, plain(found), 60, TEXTS, QUIET)
    norm = own_norm(cast(nn.Module, found.whole.base_model))
    head = cast(nn.Module, found.whole.get_output_embeddings())
    first = 0 if vector == "hidden" else 1
    low: dict[tuple[int, int], list[float]] = {}
    high: dict[tuple[int, int], list[float]] = {}
    for text in TEXTS:
        ids = found.backbone.tokenizer(text)["input_ids"][:60]
        start = int(model_type != "gpt2")
        for k, states in enumerate(reference(found, np.array(ids))[vector]):
            with torch.no_grad():
                logits = head(norm(states))
            slack = STATE_TOLERANCE * max(float(logits.abs().max()), 1.0)
            for t in range(max(start - 1, 0), len(ids)):
                for offset in OFFSETS:
                    if t + offset < len(ids):
                        own = float(logits[t, ids[t + offset]])
                        ranks = [
                            1
                            + sum(
                                s >= own + d
                                for i, s in enumerate(logits[t].tolist())
                                if i != ids[t + offset]
                            )
                            for d in (-slack, slack)
                        ]
                        cell = (first + k, offset)
                        for out, rank in zip((low, high), ranks, strict=True):
                            out.setdefault(cell, []).append(1 / rank if rank <= 50 else 0.0)
    rows = ours.table.to_pylist()
    assert {(row["layer"], row["offset"]) for row in rows} == set(low)
    for row in rows:
        cell = (row["layer"], row["offset"])
        assert row["n"] == len(low[cell])
        lowest, highest = np.mean(low[cell]), np.mean(high[cell])
        assert lowest - 1e-12 <= row["mrr"] <= highest + 1e-12
        assert highest - lowest < 0.02, "the tolerance says something"


def test_at_full_depth_it_is_the_models_own_prediction(decoder: Decoders) -> None:
    """Layer L through norm and unembedding, against the language model's logits."""
    for model_type in MODELS:
        found = decoder(model_type)
        batch = encoded(found)
        *_, (layer, rows) = token_vectors(found.backbone, batch, plain(found), "hidden")
        assert layer == N_LAYERS
        norm = found.backbone.family.norm_module(found.backbone.model)
        assert norm is not None
        head = cast(nn.Module, found.whole.get_output_embeddings())
        for ids, mine in zip(batch.token_ids, per_text(norm(rows), batch), strict=True):
            with torch.no_grad():
                theirs = found.whole.base_model(input_ids=tensor(ids)[None]).last_hidden_state
                assert close(head(mine), head(theirs[0]))


@pytest.mark.parametrize("vector", ["hidden", "aligned_va", "aligned_wva"])
@pytest.mark.parametrize("model_type", MODELS)
def test_later_tokens_change_nothing(decoder: Decoders, model_type: str, vector: Vector) -> None:
    """Attention is restricted to the prefix exactly: the same batch with other tokens behind."""
    found = decoder(model_type)
    batch = encoded(found, TEXTS[1:2])
    ids = batch.token_ids[0].copy()
    kept = len(ids) // 2
    changed = ids.copy()
    changed[kept:] = (changed[kept:] + 7) % 300 + 4
    assert (changed != ids)[kept:].all()
    other = Encoded(
        Ragged.from_arrays([changed]), batch.span, batch.span_start, batch.span_end, batch.truncated
    )
    pairs = zip(
        token_vectors(found.backbone, batch, plain(found), vector),
        token_vectors(found.backbone, other, plain(found), vector),
        strict=True,
    )
    for (_, before), (_, after) in pairs:
        assert close(before[:kept], after[:kept], 1e-6)
        assert not close(before[kept:], after[kept:], 1e-2)


def test_a_batch_gives_what_single_texts_give(decoder: Decoders) -> None:
    found = decoder("llama")
    together = encoded(found)
    for vector in ("hidden", "aligned_va", "aligned_wva"):
        batched = dict(token_vectors(found.backbone, together, plain(found), vector))
        for i in range(len(TEXTS)):
            alone = token_vectors(
                found.backbone, together.take(np.array([i])), plain(found), vector
            )
            for layer, rows in alone:
                assert close(per_text(batched[layer], together)[i], rows)


def test_the_best_layer_is_the_first_with_the_highest_score(
    decoder: Decoders, tmp_path: Path
) -> None:
    """Relation 48, second half."""
    found = decoder("llama")
    scores = logit_lens(ALL_TEXTS, found.backbone, plain(found), 60, TEXTS, QUIET)
    rows = scores.table.to_pylist()
    for offset in OFFSETS:
        by_layer = {row["layer"]: row["mrr"] for row in rows if row["offset"] == offset}
        layer, mrr = scores.best(offset)
        assert mrr == max(by_layer.values())
        assert layer == min(k for k, value in by_layer.items() if value == mrr)
    scores.save(tmp_path)
    loaded = LensScores.load(tmp_path)
    assert loaded.table.equals(scores.table)
    assert loaded.curves == scores.curves
    assert {p.measure for p in scores.curves.points} == {
        f"MRR@100 of token +{offset}" for offset in OFFSETS
    }


def test_a_template_asks_for_the_texts_own_tokens_only(decoder: Decoders) -> None:
    found = decoder("llama")
    recipe = plain(found, "template:template=wind {text} sun .")
    config = ALL_TEXTS.model_copy(update={"offsets": (1,)})
    scores = logit_lens(config, found.backbone, recipe, 60, ("ice",), QUIET)
    own = found.backbone.tokenizer("wind ice sun .", return_offsets_mapping=True)["offset_mapping"]
    inside = sum(5 <= end - 1 < 8 and end > start for start, end in own)
    assert set(scores.table.column("n").to_pylist()) == {inside}


@pytest.mark.parametrize("recipe", ["htp", "token_prepending", "echo", "contrastive:block=1"])
def test_recipes_that_show_later_tokens_are_refused(decoder: Decoders, recipe: str) -> None:
    found = decoder("llama")
    with pytest.raises(InputError, match=r"asked for what follows.*use plain or a template"):
        logit_lens(ALL_TEXTS, found.backbone, plain(found, recipe), 60, TEXTS, QUIET)


def test_what_cannot_be_asked_is_refused(decoder: Decoders, tmp_path: Path) -> None:
    found = decoder("llama")
    files = find_backbone(BackboneConfig(source=str(save_model("bert", tmp_path / "bert"))))
    encoder = load_backbone(files, "float32", "cpu")
    recipe = resolve_recipe(parse_recipe("plain"), encoder.sizes)
    with pytest.raises(InputError, match="an encoder"):
        logit_lens(ALL_TEXTS, encoder, recipe, 60, TEXTS, QUIET)
    far = ALL_TEXTS.model_copy(update={"offsets": (1, 60)})
    with pytest.raises(InputError, match="no text has a token 60 tokens after"):
        logit_lens(far, found.backbone, plain(found), 60, TEXTS, QUIET)


def test_a_planted_answer_is_found_where_it_was_put(tmp_path: Path) -> None:
    """The last block puts out the unembedding row of the token after next."""
    folder = save_causal("llama", tmp_path)
    files = find_backbone(BackboneConfig(source=str(folder)))
    backbone = load_backbone(files, "float32", "cpu")
    recipe = resolve_recipe(parse_recipe("plain"), backbone.sizes)
    ids = tensor(encode(recipe, backbone.tokenizer, TEXTS[1:2], 60).token_ids[0])
    planted = torch.zeros(1, len(ids), 32)
    planted[0, :-2] = nn.functional.normalize(read_unembedding(files).rows)[ids[2:]]
    block_list(backbone.model)[-1].register_forward_hook(lambda *_: planted, prepend=True)
    cast(Tensor, own_norm(backbone.model).weight).detach().fill_(1)
    config = LogitLensConfig(n_texts=1, min_words=1, offsets=(1, 2))
    scores = logit_lens(config, backbone, recipe, 60, TEXTS[1:2], QUIET)
    mrr = {(row["layer"], row["offset"]): row["mrr"] for row in scores.table.to_pylist()}
    assert mrr[N_LAYERS, 2] == 1
    assert max(value for cell, value in mrr.items() if cell != (N_LAYERS, 2)) < 0.5


def test_prefixes_are_drawn_once_from_the_lengths_that_are_there(decoder: Decoders) -> None:
    batch = encoded(decoder("llama"))
    n_own = (batch.span_end - batch.span_start).tolist()
    config = Prefixes(n=99, shortest=3, longest=12)
    texts, lengths = draw_prefixes(config, batch, OFFSETS, seed=0, max_length=60)
    every = {(i, t) for i, n in enumerate(n_own) for t in range(3, min(12, n - max(OFFSETS)) + 1)}
    assert [*zip(texts.tolist(), lengths.tolist(), strict=True)] == sorted(every)
    # A second one of a text only when every text has one.
    first = draw_prefixes(config.model_copy(update={"n": 2}), batch, OFFSETS, 0, 60)
    assert len({*first[0].tolist()}) == 2
    # What is drawn of a text does not depend on the others, but on the seed.
    one = config.model_copy(update={"n": 1})
    alone = [draw_prefixes(one, batch.take(np.array([2])), OFFSETS, seed, 60) for seed in range(9)]
    assert len({int(t[0]) for _, t in alone}) > 1
    far = Prefixes(shortest=100, longest=100)
    whole = replace(batch, truncated=np.zeros(len(batch), dtype=np.bool_))
    says = f"no text has 104 tokens, .*; the longest has {max(n_own)}.* or give longer texts"
    with pytest.raises(InputError, match=says):
        draw_prefixes(far, whole, OFFSETS, 0, 60)
    cut = replace(batch, truncated=np.ones(len(batch), dtype=np.bool_))
    with pytest.raises(InputError, match=r"104 tokens within max_length 60, .* raise max_length"):
        draw_prefixes(far, cut, OFFSETS, 0, 60)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3"])
def test_weights_of_a_later_token_are_those_of_the_models_own_attention(
    decoder: Decoders, model_type: str
) -> None:
    """Appendix E's formula, from eager attention's whole matrices."""
    found = decoder(model_type)
    batch, n_prefix, query = encoded(found, TEXTS[1:2]), 4, 6
    ids = batch.token_ids[0]
    cut = inputs_to(batch, np.array([0]), np.array([query + 1]))
    mine = dict(vectors_by_later_weights(found.backbone, cut, plain(found), np.array([n_prefix])))
    sizes = found.backbone.sizes
    model = cast(nn.Module, found.whole.base_model)
    with ExitStack() as stack, torch.no_grad():
        passed = [stack.enter_context(seen(value_module(model, k + 1))) for k in range(N_LAYERS)]
        whole = found.whole.base_model(input_ids=tensor(ids)[None], output_attentions=True)
    for k in range(N_LAYERS):
        weight, bias = weights(projection(model, k + 1))
        values = value_output(sizes, passed[k][0][0]).unflatten(1, (sizes.n_kv_heads, -1))
        z = []
        for h in range(sizes.n_attn_heads):
            row = whole.attentions[k][0, h, query, :n_prefix]
            value = values[:n_prefix, h * sizes.n_kv_heads // sizes.n_attn_heads]
            z.append(sum(row[j] / row.sum() * value[j] for j in range(n_prefix)))
        assert close(mine[k + 1][0], torch.cat(z) @ weight + bias)


def test_all_vectors_are_asked_of_the_same_prefixes(decoder: Decoders) -> None:
    """And what stands before the last token of a prefix alone does not depend on how far is asked."""
    found = decoder("llama")
    prefixes = Prefixes(n=6, shortest=3, longest=30)
    counts, by_vector = set[int](), dict[str, list[float]]()
    for vector in ("hidden", "aligned_va", "aligned_wva_ahead"):
        fields = {"n_texts": 99, "min_words": 1, "offsets": OFFSETS, "prefixes": prefixes}
        config = LogitLensConfig.model_validate({**fields, "vector": vector})
        rows = logit_lens(config, found.backbone, plain(found), 60, TEXTS, QUIET).table.to_pylist()
        counts |= {row["n"] for row in rows}
        by_vector[vector] = [row["mrr"] for row in rows if row["layer"] > 0]
    assert counts == {6}
    assert by_vector["aligned_wva_ahead"] != by_vector["aligned_va"]


def test_without_the_norm_the_unembedding_reads_the_vectors_themselves(decoder: Decoders) -> None:
    found = decoder("llama")
    config = ALL_TEXTS.model_copy(update={"norm": "none", "offsets": (1,)})
    rows = logit_lens(config, found.backbone, plain(found), 60, TEXTS[1:2], QUIET).table.to_pylist()
    batch = encoded(found, TEXTS[1:2])
    ids = batch.token_ids[0].tolist()
    head = read_unembedding(find_backbone(BackboneConfig(source=str(found.folder)))).rows
    for k, states in token_vectors(found.backbone, batch, plain(found), "hidden"):
        logits = states @ head.T
        ranks = [int((logits[t] >= logits[t, ids[t + 1]]).sum()) for t in range(len(ids) - 1)]
        expected = np.mean([1 / rank if rank <= 100 else 0 for rank in ranks])
        (mine,) = (row["mrr"] for row in rows if row["layer"] == k)
        # A rank that rounding moves by one changes the mean by less than this.
        assert mine == pytest.approx(expected, abs=0.5 / len(ranks))


def test_weights_of_a_later_token_need_prefixes() -> None:
    with pytest.raises(ValidationError, match="give 'prefixes'"):
        LogitLensConfig(vector="aligned_wva_ahead")
    with pytest.raises(ValidationError, match="longest is 3"):
        Prefixes(shortest=4, longest=3)
