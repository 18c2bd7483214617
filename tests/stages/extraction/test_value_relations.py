"""Relations of Value Aggregation (METHODS.md, 37 to 47) between captures and transformers' own tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.recipes import Encoded, parse_recipe
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.references import (
    DECODERS,
    Pairs,
    block_list,
    close,
    encoded,
    entries,
    per_text,
    projection,
    reference_run,
    run,
    seen,
    submodule,
    tensor,
)
from tests.stages.extraction.tiny_models import (
    D_MODEL,
    N_HEADS,
    N_KV_HEADS,
    N_LAYERS,
    TEXTS,
    each_family,
    save_model,
)

BLOCKS = range(1, N_LAYERS + 1)


def wva(backbone: Backbone, row_TH: Tensor, values: Tensor) -> Tensor:
    """Weighted value aggregation of one text: heads side by side, `[n_attn_heads * d_head]`."""
    sizes = backbone.sizes
    each = sizes.n_attn_heads // sizes.n_kv_heads
    heads = [
        sum(
            row_TH[t, h] * values[t].unflatten(0, (sizes.n_kv_heads, -1))[h // each]
            for t in range(len(values))
        )
        for h in range(sizes.n_attn_heads)
    ]
    return torch.cat([torch.as_tensor(head) for head in heads])


def aligned(backbone: Backbone, z: Tensor, block: int) -> Tensor:
    weight, bias = output_projection(backbone, block)
    return torch.from_numpy(z.numpy() @ weight + (0.0 if bias is None else bias))


@pytest.mark.parametrize("model_type", each_family(DECODERS))
class TestEveryDecoder:
    def test_weighted_values_are_the_input_and_aligned_ones_the_output_of_the_projection(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relations 37 and 38, at the last token."""
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "values=all,attention_rows=all", batch)
        for block in BLOCKS:
            module = projection(both.reference, block)
            for i, ids in enumerate(batch.token_ids):
                with seen(module, inputs=True) as entering, seen(module) as leaving:
                    reference_run(both, ids)
                row = per_text(ours[f"attention_rows/{block}"], batch)[i]
                z = wva(both.backbone, row, per_text(ours[f"values/{block}"], batch)[i])
                assert close(z, entering[0][0, -1])
                assert close(aligned(both.backbone, z, block), leaving[0][0, -1])

    def test_what_a_block_adds_is_attention_and_feed_forward(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 40: x_l - x_(l-1) - f_l = a_l. Gemma norms both before they are added."""
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "hidden=all,values=all,attention_rows=all", batch)
        is_gemma = model_type == "gemma2"
        feed_forward = ("post_feedforward_layernorm",) if is_gemma else ("mlp", "fc2")
        for block in BLOCKS:
            module = block_list(both.reference)[block - 1]
            attention = submodule(module, "post_attention_layernorm") if is_gemma else None
            attention = attention or projection(both.reference, block)
            for i, ids in enumerate(batch.token_ids):
                with seen(submodule(module, *feed_forward)) as f, seen(attention) as a:
                    reference_run(both, ids)
                after = per_text(ours[f"hidden/{block}"], batch)[i]
                before = per_text(ours[f"hidden/{block - 1}"], batch)[i]
                f_TD, a_TD = f[0].reshape(after.shape), a[0].reshape(after.shape)
                # Relative to the states that are subtracted, not to their smaller difference.
                scale = max(float(x.abs().max()) for x in (after, before, f_TD, a_TD))
                assert close((after - before - f_TD) / scale, a_TD / scale)
                if not is_gemma:
                    row = per_text(ours[f"attention_rows/{block}"], batch)[i]
                    z = wva(both.backbone, row, per_text(ours[f"values/{block}"], batch)[i])
                    ours_a = aligned(both.backbone, z, block)
                    assert close((after - before - f_TD)[-1] / scale, ours_a / scale)

    def test_values_do_not_depend_on_what_follows_and_add_up(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 43: N times the mean over a growing text is a running sum."""
        backbone = pair(model_type).backbone
        batch = encoded(backbone, texts=("snow melts under the sun .",))
        n = int(batch.token_ids.lengths[0])
        whole = run(backbone, "values=all", batch)
        for length in (1, 2, n // 2, n):
            prefix = Encoded(
                token_ids=type(batch.token_ids).from_arrays([batch.token_ids[0][:length]]),
                span=type(batch.span).from_arrays([np.ones(length, np.bool_)]),
                span_start=np.zeros(1, np.int64),
                span_end=np.full(1, length),
                truncated=np.zeros(1, np.bool_),
            )
            part = run(backbone, "values=all,values=all@mean", prefix)
            for block in BLOCKS:
                values = whole[f"values/{block}"][:length]
                assert close(part[f"values/{block}"], values)
                assert close(length * part[f"pooled/values_mean/{block}"][0], values.sum(0))

    def test_values_are_those_of_the_key_value_cache(self, pair: Pairs, model_type: str) -> None:
        """Relation 44."""
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "values=all", batch)
        for i, ids in enumerate(batch.token_ids):
            # Not made from the config, or layers with a window would keep that much only.
            cache = DynamicCache()
            with torch.no_grad():
                both.reference(input_ids=tensor(ids)[None], past_key_values=cache, use_cache=True)
            for block in BLOCKS:
                theirs = cast(Tensor, vars(cache.layers[block - 1])["values"])
                rows = per_text(ours[f"values/{block}"], batch)[i]
                assert close(rows, theirs[0].transpose(0, 1).flatten(1))

    def test_widths_with_grouped_queries(self, pair: Pairs, model_type: str) -> None:
        """Relation 45: n_kv * d_head, n_q * d_head and d_model."""
        backbone = pair(model_type).backbone
        config = backbone.model.config
        d_head = {"qwen3": 12, "gemma2": 8}.get(model_type, D_MODEL // N_HEADS)
        n_kv = N_KV_HEADS if hasattr(config, "num_key_value_heads") else N_HEADS
        batch = encoded(backbone, texts=TEXTS[:1])
        ours = run(backbone, "values=2,attention_rows=2,values=2@mean", batch)
        assert ours["values/2"].shape[1] == n_kv * d_head
        assert ours["pooled/values_mean/2"].shape == (1, n_kv * d_head)
        z = wva(backbone, ours["attention_rows/2"], ours["values/2"])
        assert z.shape == (N_HEADS * d_head,)
        assert aligned(backbone, z, 2).shape == (D_MODEL,)


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "opt"])
def test_one_token_makes_weighted_values_the_values(pair: Pairs, model_type: str) -> None:
    """Relation 41 for N = 1: the only weight is 1, and every head has values of its own."""
    both = pair(model_type)
    batch = Encoded(
        token_ids=type(encoded(both.backbone).token_ids).from_arrays([np.array([7], np.int32)]),
        span=type(encoded(both.backbone).span).from_arrays([np.ones(1, np.bool_)]),
        span_start=np.zeros(1, np.int64),
        span_end=np.ones(1, np.int64),
        truncated=np.zeros(1, np.bool_),
    )
    ours = run(both.backbone, "values=all,attention_rows=all,values=all@mean", batch)
    for block in BLOCKS:
        assert torch.equal(ours[f"attention_rows/{block}"], torch.ones(1, N_HEADS))
        with seen(projection(both.reference, block), inputs=True) as entering:
            reference_run(both, batch.token_ids[0])
        assert close(ours[f"pooled/values_mean/{block}"][0], entering[0][0, 0])


@pytest.mark.parametrize("model_type", ["gpt2", "opt"])
def test_uniform_attention_makes_weighted_values_their_mean(
    model_type: str, tmp_path: Path
) -> None:
    """Relation 41: without queries every weight is 1 / N; z is what our run feeds to the projection."""
    folder = save_model(model_type, tmp_path)
    backbone = load_backbone(find_backbone(BackboneConfig(source=str(folder))), "float32", "cpu")
    for block in block_list(backbone.model):
        silence_queries(block)
    batch = encoded(backbone)
    for block in BLOCKS:
        capture = f"values={block}@mean,attention_rows={block}"
        with seen(projection(backbone.model, block), inputs=True) as entering:
            ours = run(backbone, capture, batch)
        for i, row in enumerate(per_text(ours[f"attention_rows/{block}"], batch)):
            assert torch.allclose(row, torch.full_like(row, 1 / len(row)), atol=1e-6)
            z = entering[0][i, len(row) - 1]
            assert close(ours[f"pooled/values_mean/{block}"][i], z)


def silence_queries(block: nn.Module) -> None:
    for name, module in block.named_modules():
        if name.endswith(("c_attn", "q_proj")):
            # GPT-2 keeps [in, out] and puts queries first; they are all there is to OPT's q_proj.
            cast(Tensor, module.weight).detach()[:, :D_MODEL] = 0
            cast(Tensor, module.bias).detach()[:D_MODEL] = 0


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_layers_are_averaged_one_by_one_and_their_scale_does_not_matter(
    pair: Pairs, model_type: str
) -> None:
    """Relation 42: VA(S) is the mean of single layers' VA; a sum over layers has the same cosines."""
    backbone = pair(model_type).backbone
    batch = encoded(backbone)
    ours = run(backbone, "values=2-3,values=2-3@mean", batch)
    single = [ours[f"pooled/values_mean/{k}"] for k in (2, 3)]
    for i, n in enumerate(batch.token_ids.lengths.tolist()):
        both_layers = torch.cat([per_text(ours[f"values/{k}"], batch)[i] for k in (2, 3)])
        assert len(both_layers) == 2 * n
        assert close((single[0][i] + single[1][i]) / 2, both_layers.mean(0))
    summed, averaged = (
        nn.functional.normalize(x) for x in (single[0] + single[1], (single[0] + single[1]) / 2)
    )
    # One rounding each way: eps of float32 is 1.2e-7.
    assert torch.allclose(summed @ summed.T, averaged @ averaged.T, atol=1e-6)


class Counted:
    """An extraction that counts how often the first block runs, and over how many tokens."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home

    def __call__(self, recipe: str, capture: str) -> tuple[int, int]:
        calls = tokens = 0
        members = parse_recipe(recipe).members()
        for member in members:
            backbone = BackboneConfig(source=str(self.folder))
            target = resolve_target(
                ExtractConfig(backbone=backbone, recipe=member, capture=parse_capture(capture))
            )
            loaded = load_backbone(target.files, "float32", "cpu")
            with entries(block_list(loaded.model)[0]) as first:
                report = extract(
                    target,
                    self.home,
                    TEXTS,
                    [text_digest(t) for t in TEXTS],
                    # A batch for each text.
                    ExtractRuntime(device="cpu", batch_tokens=1),
                    SilentProgress(),
                    load=lambda loaded=loaded: loaded,
                )
            calls += len(first)
            tokens += report.n_tokens
        return calls, tokens


@pytest.mark.deep
def test_forward_passes_per_text(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    """Relation 46: one for (weighted) value aggregation, eight for MetaEOL, one of about twice the
    length for Echo; contrastive prompting takes two, the second of which stops early."""
    # Positions enough for the longest prompt.
    folder = save_model("llama", tmp_path / "model", max_position_embeddings=1024)
    config = folder / "tokenizer_config.json"
    config.write_text(
        config.read_text().replace('"model_max_length": 60', '"model_max_length": 1024')
    )
    counted = Counted(folder, tmp_path / "home")
    n = len(TEXTS)
    values = "values=all,attention_rows=all"
    calls, tokens = counted("plain", values)
    assert calls == n
    assert counted("prompt_eol", values)[0] == n
    assert counted("meta_eol", "hidden=final@readout")[0] == 8 * n
    assert counted("contrastive:block=1", "hidden=final@readout")[0] == 2 * n
    assert counted("htp", "hidden=final@mean")[0] == n
    echo_calls, echo_tokens = counted("echo:template={first} {text}", "hidden=final@mean")
    assert echo_calls == n
    # Twice the text, one <s>, a space between the copies.
    assert abs(echo_tokens - 2 * tokens) <= 2 * n


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_next_token_loss_is_infonce_over_unembedding_rows(
    model_folder: Callable[[str], Path], pair: Pairs, temperature: float
) -> None:
    """Relation 47: the language model's own loss, from its logits, against InfoNCE of the stored states."""
    whole = AutoModelForCausalLM.from_pretrained(model_folder("llama")).eval()
    backbone = pair("llama").backbone
    batch = encoded(backbone)
    states = run(backbone, "hidden=final", batch)["hidden/final"]
    keys = whole.lm_head.weight.detach()
    parts = np.split(states.numpy(), batch.token_ids.offsets[1:-1])
    for ids, mine in zip(batch.token_ids, parts, strict=True):
        following = tensor(ids)[1:]
        if not len(following):
            continue
        with torch.no_grad():
            logits = whole(input_ids=tensor(ids)[None]).logits[0, :-1]
        loss = nn.functional.cross_entropy(logits / temperature, following)
        similar = np.exp(mine[:-1].astype(np.float64) @ keys.numpy().T / temperature)
        positive = similar[np.arange(len(following)), following.numpy()]
        infonce = -np.log(positive / similar.sum(axis=1)).mean()
        assert infonce == pytest.approx(float(loss), rel=1e-4)
