"""The table of architectures, checked against real modules of each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from permafrost.stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
    read_sizes,
)
from permafrost.stages.extraction.families import FAMILIES, family_of, output_projection
from permafrost.storage.errors import InputError
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.tiny_models import (
    CONFIGS,
    D_MODEL,
    N_HEADS,
    N_LAYERS,
    UNSUPPORTED,
    each_family,
    save_model,
)


def test_every_family_has_a_tiny_model_that_proves_it() -> None:
    assert set(FAMILIES) == set(CONFIGS)
    assert all(CONFIGS[name]().model_type == name for name in CONFIGS)


@pytest.mark.parametrize("model_type", each_family(FAMILIES))
def test_blocks_attention_and_norm_are_where_the_table_says(
    pair: Callable[[str], Pair], model_type: str
) -> None:
    backbone = pair(model_type).backbone
    family, model = backbone.family, backbone.model
    assert len(family.block_list(model)) == N_LAYERS == backbone.sizes.n_layers
    calls_attention = "self" if family.attention.endswith("self") else "attention"
    attention = family.attention_module(model, 2)
    assert calls_attention in type(attention).__name__.lower()
    norm = family.norm_module(model)
    assert (norm is not None) == backbone.sizes.has_final_norm
    assert norm is None or "norm" in type(norm).__name__.lower()
    # Whether the table is right about direction: does the first token react to what follows it?
    ids = torch.tensor([[5, 6, 7], [5, 8, 9]])
    with torch.no_grad():
        first = model(input_ids=ids).last_hidden_state[:, 0]
    assert torch.equal(first[0], first[1]) == family.is_decoder


@pytest.mark.parametrize("model_type", each_family(FAMILIES))
def test_the_projection_maps_all_heads_to_the_residual_stream(
    pair: Callable[[str], Pair], model_type: str
) -> None:
    backbone = pair(model_type).backbone
    sizes = backbone.sizes
    weight, bias = output_projection(backbone, 1)
    assert weight.shape == (sizes.n_attn_heads * sizes.d_head, D_MODEL)
    assert weight.dtype == np.float32
    module = backbone.family.projection_module(backbone.model, 1)
    assert isinstance(module, Conv1D) == (model_type == "gpt2")
    z = torch.linspace(-1, 1, weight.shape[0])
    expected = module(z[None])[0].detach().numpy()
    assert np.allclose(z.numpy() @ weight + (0.0 if bias is None else bias), expected, atol=1e-5)


@pytest.mark.parametrize("model_type", sorted(UNSUPPORTED))
def test_other_architectures_are_refused_with_those_that_are_supported(
    tmp_path: Path, model_type: str
) -> None:
    files = find_backbone(BackboneConfig(source=str(save_model(model_type, tmp_path))))
    with pytest.raises(InputError, match=f"'{model_type}' model, .* supported are bert, .*, gpt2"):
        read_sizes(files)
    with pytest.raises(InputError, match=f"'{model_type}' model"):
        load_backbone(files, "float32")


def test_a_config_without_model_type_is_refused() -> None:
    says = "the backbone 'x' is a 'None' model, .* Captures are tested for these architectures only"
    with pytest.raises(InputError, match=says):
        family_of("None", "the backbone 'x'")


def test_a_family_without_norm_after_the_last_block_has_no_final_layer(tmp_path: Path) -> None:
    # The layout of OPT-350m: norms after each part, none at the end, and narrower embeddings.
    folder = save_model("opt", tmp_path, do_layer_norm_before=False, word_embed_proj_dim=16)
    files = find_backbone(BackboneConfig(source=str(folder)))
    assert not read_sizes(files).has_final_norm
    assert load_backbone(files, "float32", "cpu").sizes.d_model == D_MODEL


def test_grouped_and_wide_heads_have_their_own_widths(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    llama, qwen3 = read_sizes(tiny_files("llama")), read_sizes(tiny_files("qwen3"))
    assert (llama.n_attn_heads, llama.n_kv_heads, llama.d_head, llama.d_value) == (
        N_HEADS,
        2,
        8,
        16,
    )
    assert (qwen3.d_head, qwen3.d_value) == (12, 24)
