"""Sizes, lengths, tokenizers, and loading that refuses instead of guessing."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
    load_tokenizer,
    read_sizes,
)
from permafrost.stages.extraction.facts import facts_of, max_length_of
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import PlainRecipe, encode
from permafrost.storage.errors import InputError, PermafrostError
from tests.stages.extraction.references import close
from tests.stages.extraction.tiny_models import (
    D_MODEL,
    N_HEADS,
    N_LAYERS,
    TEXTS,
    VOCABULARY,
    save_model,
)

Files = Callable[[str], BackboneFiles]

EMBEDDING_TOLERANCE = 1e-6
"""Unit vectors of width 384 in float32: padding amounts and the order of sums differ."""


def files_of(folder: Path) -> BackboneFiles:
    return find_backbone(BackboneConfig(source=str(folder)))


def change_config(folder: Path, **changes: Any) -> BackboneFiles:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return files_of(folder)


@pytest.fixture
def copy(tmp_path: Path, model_folder: Callable[[str], Path]) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(model_folder(name), tmp_path / name))


@pytest.fixture(scope="module")
def minilm() -> Backbone:
    return load_backbone(find_backbone(BackboneConfig(source="minilm")), "float32", "cpu")


def test_minilm_has_the_sizes_of_its_card(minilm: Backbone) -> None:
    sizes = minilm.sizes
    assert (sizes.model_type, sizes.n_layers, sizes.d_model, sizes.n_attn_heads) == (
        "bert",
        6,
        384,
        12,
    )
    assert not sizes.has_final_norm
    assert not sizes.is_decoder


def test_minilm_means_equal_the_embeddings_of_sentence_transformers(minilm: Backbone) -> None:
    from sentence_transformers import SentenceTransformer

    texts = (*TEXTS, "Über den Gletschern liegt Schnee, and the ice below it is blue.")
    model = SentenceTransformer(str(minilm.files.folder), device="cpu")
    expected = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    batch = encode(PlainRecipe(), minilm.tokenizer, texts, 256)
    name = "pooled/hidden_mean/6"
    means = forward(minilm, batch, [name], PlainRecipe(readout="first"))[name]
    ours = torch.nn.functional.normalize(means, dim=1).numpy()
    assert abs(ours - expected).max() <= EMBEDDING_TOLERANCE


def test_a_loaded_backbone_is_frozen_and_keeps_no_cache(tiny_files: Files) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    assert not backbone.model.training
    assert not any(p.requires_grad for p in backbone.model.parameters())
    ids = torch.tensor([[3, 4]])
    assert backbone.model(input_ids=ids).past_key_values is None


@pytest.mark.parametrize("family", ["bert", "llama", "mpnet"])
def test_running_a_backbone_leaves_its_weights_and_gradients_alone(
    tiny_files: Files, family: str
) -> None:
    """GLOT 4.1: the backbone's checksum is unchanged, and no gradient reaches it."""
    backbone = load_backbone(tiny_files(family), "float32", "cpu")
    before = {n: p.clone() for n, p in backbone.model.named_parameters()}
    recipe = PlainRecipe(readout="last")
    batch = encode(recipe, backbone.tokenizer, TEXTS, 32)
    names = ["hidden/2", "values/1", "attention_rows/1"]
    found = forward(backbone, batch, names, recipe)
    head = torch.nn.Linear(found["hidden/2"].shape[-1], 1)
    head(found["hidden/2"].float()).sum().backward()
    assert head.weight.grad is not None
    for name, parameter in backbone.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert parameter.grad is None, name


def test_the_compute_dtype_is_ours_and_not_the_checkpoints(tmp_path: Path) -> None:
    files = files_of(save_model("llama", tmp_path, dtype=torch.bfloat16))
    for name in ("float32", "bfloat16", "float16"):
        backbone = load_backbone(files, name, "cpu")
        assert backbone.dtype == getattr(torch, name)
        assert {p.dtype for p in backbone.model.parameters()} == {backbone.dtype}


def test_loading_prints_and_logs_nothing(
    tiny_files: Files, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers.utils.logging.get_verbosity()
    files = tiny_files("gpt2")
    capfd.readouterr()
    load_backbone(files, "float32", "cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == before != logging.ERROR
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_a_checkpoint_that_lacks_weights_is_refused(
    copy: Callable[[str], Path], model_type: str
) -> None:
    folder = copy(model_type)
    weights = load_file(folder / "model.safetensors")
    dropped = next(name for name in weights if "q_proj.weight" in name or "query.weight" in name)
    del weights[dropped]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"lacks 1 weights .* among them {dropped}"):
        load_backbone(files_of(folder), "float32", "cpu")


@pytest.mark.parametrize(
    ("model_type", "unread"),
    [
        ("bert", "encoder.layer.1.attention.self.distance_embedding.weight"),
        ("mistral", "layers.0.self_attn.q_proj.bias"),
    ],
)
def test_weights_of_blocks_that_nothing_reads_are_refused(
    copy: Callable[[str], Path], model_type: str, unread: str
) -> None:
    """As of positions that transformers has no code for any more, or of biases that the config denies."""
    folder = copy(model_type)
    weights = load_file(folder / "model.safetensors")
    save_file(
        weights | {unread: torch.ones(D_MODEL)}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(InputError, match=f"has 1 weights in its blocks .* among them {unread}"):
        load_backbone(files_of(folder), "float32", "cpu")


def test_what_stands_beside_the_blocks_weights_does_not_matter(copy: Callable[[str], Path]) -> None:
    """Heads, masks and frequencies of older checkpoints, and blocks that the config leaves out."""
    beside = {
        "llama": (
            "layers.0.self_attn.rotary_emb.inv_freq",
            f"layers.{N_LAYERS}.mlp.up_proj.weight",
        ),
        "gpt2": ("h.0.attn.bias", "h.1.attn.masked_bias"),
        "bert": ("cls.predictions.bias", "embeddings.position_ids"),
    }
    for model_type, names in beside.items():
        folder = copy(model_type)
        weights = load_file(folder / "model.safetensors")
        more = {name: torch.ones(3) for name in names}
        save_file(weights | more, folder / "model.safetensors", {"format": "pt"})
        assert load_backbone(files_of(folder), "float32", "cpu").sizes.n_layers == N_LAYERS


def test_long_positions_of_other_frequencies_are_out_of_reach(tmp_path: Path) -> None:
    """Beyond them transformers computes all texts of a batch with other frequencies."""
    n = D_MODEL // N_HEADS // 2
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10_000.0}
    original = {"original_max_position_embeddings": 16}
    rope |= {"partial_rotary_factor": 1.0, **original}
    rope |= {"short_factor": [1.0] * n, "long_factor": [4.0] * n}
    folder = save_model("phi3", tmp_path / "phi3", rope_parameters=rope, **original)
    assert read_sizes(files_of(folder)).max_positions == 16
    plain = save_model("phi3", tmp_path / "plain")
    assert read_sizes(files_of(plain)).max_positions == 64


def test_a_missing_pooler_does_not_matter_because_nothing_reads_it(
    copy: Callable[[str], Path],
) -> None:
    folder = copy("bert")
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("pooler")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert load_backbone(files_of(folder), "float32", "cpu").sizes.n_layers == 3


def test_weights_of_other_shapes_or_broken_files_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    with pytest.raises(InputError, match="cannot be loaded as a 'llama' model"):
        load_backbone(change_config(folder, intermediate_size=50), "float32", "cpu")
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(InputError, match="cannot be loaded as a 'llama' model"):
        load_backbone(files_of(folder), "float32", "cpu")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded as a 'llama' model"):
        load_backbone(files_of(folder), "float32", "cpu")


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {"is_decoder": True}, "'bert' model set to be a decoder"),
        ("mpnet", {"is_decoder": True}, "'mpnet' model set to be a decoder"),
        ("llama", {"is_causal": False}, "attend in both directions"),
        ("gemma2", {"use_bidirectional_attention": True}, "attend in both directions"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantised weights"),
        ("llama", {"hidden_size": "wide"}, "cannot be read"),
        ("roberta", {"pad_token_id": None}, "has no pad_token_id"),
    ],
)
def test_unusual_configurations_are_refused(
    copy: Callable[[str], Path], model_type: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_sizes(change_config(copy(model_type), **changes))


def test_outputs_switched_on_in_a_config_are_switched_off(copy: Callable[[str], Path]) -> None:
    files = change_config(copy("gpt2"), output_hidden_states=True, output_attentions=True)
    backbone = load_backbone(files, "float32", "cpu")
    output = backbone.model(input_ids=torch.tensor([[3, 4]]))
    assert output.hidden_states is None
    assert output.attentions is None


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu9", "'tpu9' is not supported"),
        ("cuda:x", "'cuda:x' is not supported"),
        ("meta", "'meta' is not supported"),
        ("cuda:99", "'cuda:99' was asked for, but torch .* sees [0-9]+ CUDA"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    tiny_files: Files, device: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_backbone(tiny_files("bert"), "float32", device)


def test_positions_that_roberta_never_uses_do_not_count(tiny_files: Files) -> None:
    assert read_sizes(tiny_files("roberta")).max_positions == 64
    assert read_sizes(tiny_files("mpnet")).max_positions == 64
    assert read_sizes(tiny_files("bert")).max_positions == 64


def test_mpnet_counts_positions_after_1_whatever_its_config_pads_with(
    copy: Callable[[str], Path],
) -> None:
    files = change_config(copy("mpnet"), pad_token_id=0)
    assert read_sizes(files).max_positions == 64
    backbone = load_backbone(files, "float32", "cpu")
    recipe = PlainRecipe(readout="first")
    batch = encode(recipe, backbone.tokenizer, ["ice", "the ice . " * 40], 64)
    rows = forward(backbone, batch, ["hidden/3"], recipe)["hidden/3"]
    theirs = transformers.AutoModel.from_pretrained(files.folder, attn_implementation="eager")
    for i, (start, end) in enumerate(pairwise(batch.token_ids.offsets.tolist())):
        ids = torch.from_numpy(batch.token_ids[i].astype(np.int64))[None]
        with torch.no_grad():
            expected = theirs.eval()(input_ids=ids).last_hidden_state[0]
        assert close(rows[start:end], expected)


def test_the_longest_input_that_sizes_allow_runs(tiny_files: Files) -> None:
    for model_type in ("roberta", "mpnet", "bert", "gpt2", "opt", "distilbert"):
        backbone = load_backbone(tiny_files(model_type), "float32", "cpu")
        n = backbone.sizes.max_positions
        ids = encode(PlainRecipe(), backbone.tokenizer, ["the ice . " * 40], n)
        assert ids.token_ids.lengths.tolist() == [n]
        rows = forward(backbone, ids, ["hidden/3"], PlainRecipe(readout="first"))["hidden/3"]
        assert rows.isfinite().all()


def test_without_a_setting_the_length_is_the_smallest_limit(tiny_files: Files) -> None:
    files = tiny_files("bert")
    facts = facts_of(files)
    free = BackboneConfig(source="x")
    assert max_length_of(free, facts) == 60
    short = facts.sizes.model_copy(update={"max_positions": 40})
    assert max_length_of(free, replace(facts, sizes=short)) == 40
    long = facts.sizes.model_copy(update={"max_positions": 8192})
    unlimited = replace(facts, sizes=long, stated=int(1e30))
    assert max_length_of(free, unlimited) == 512
    assert max_length_of(BackboneConfig(source="x", max_length=2000), unlimited) == 2000


@pytest.mark.parametrize("length", [0, 2, 65])
def test_a_length_that_does_not_fit_the_backbone_is_refused(tiny_files: Files, length: int) -> None:
    files = tiny_files("bert")
    config = BackboneConfig(source="tiny", max_length=length)
    with pytest.raises(InputError, match=f"max_length is {length}, .* reads 3 to 64 tokens"):
        max_length_of(config, facts_of(files))


def test_a_tokenizer_neither_cuts_nor_pads_by_itself(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(files_of(folder))
    batch = encode(PlainRecipe(), tokenizer, ["ice", "the deep lake freezes slowly"], 60)
    assert batch.token_ids.lengths.tolist() == [3, 7]


@pytest.mark.parametrize("auto", ["AutoConfig", "AutoTokenizer"])
def test_a_module_of_transformers_that_cannot_be_imported_is_no_damaged_file(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, auto: str
) -> None:
    files = files_of(copy("llama"))
    read = read_sizes if auto == "AutoConfig" else load_tokenizer
    raised: list[ImportError] = []

    def fails(*_: Any, **__: Any) -> None:
        raise raised[0] from AttributeError("half a module")

    monkeypatch.setattr(getattr(transformers, auto), "from_pretrained", fails)
    for error, own in (
        (ModuleNotFoundError("Could not import module 'LlamaConfig'"), True),
        (ImportError("cannot import name 'x'", name="transformers.models.llama"), True),
        (ImportError("this file requires the following packages: einops"), False),
        (ModuleNotFoundError("No module named 'einops'", name="einops"), False),
    ):
        raised[:] = [error]
        with pytest.raises(PermafrostError) as told:
            read(files)
        assert ("a module of its own (AttributeError: half a module)" in str(told.value)) == own
        assert isinstance(told.value, InputError) != own
        assert own or "einops" in str(told.value)


@pytest.mark.parametrize("content", ["{}", "{", ""])
def test_a_tokenizer_that_cannot_be_loaded_is_refused(
    copy: Callable[[str], Path], content: str
) -> None:
    folder = copy("bert")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"the tokenizer in .* cannot be loaded"):
        load_tokenizer(files_of(folder))


def test_a_tokenizer_that_splits_words_at_random_is_refused(copy: Callable[[str], Path]) -> None:
    path = copy("llama") / "tokenizer.json"
    content = json.loads(path.read_text())
    for dropout in (0.0, 0.5):
        content["model"]["dropout"] = dropout
        path.write_text(json.dumps(content))
        files = files_of(path.parent)
        if dropout:
            with pytest.raises(InputError, match=r"at random \(dropout 0.5"):
                load_tokenizer(files)
        else:
            load_tokenizer(files)


def test_tokens_that_the_model_does_not_know_are_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    files = change_config(folder, vocab_size=10)
    with pytest.raises(InputError, match=f"{VOCABULARY}|cannot be loaded"):
        load_backbone(files, "float32", "cpu")
