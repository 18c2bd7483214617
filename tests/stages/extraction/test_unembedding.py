"""The unembedding, read from weight files, against the head that transformers loads."""

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from permafrost.stages.extraction.backbone import BackboneConfig, BackboneFiles, find_backbone
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.unembedding import read_unembedding
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import D_MODEL, VOCABULARY, each_family, save_model
from tests.stages.token_prediction.causal_models import save_causal

DECODERS = sorted(name for name, family in FAMILIES.items() if family.is_decoder)


def files_of(folder: Path) -> BackboneFiles:
    return find_backbone(BackboneConfig(source=str(folder)))


def head_of(folder: Path) -> Tensor:
    whole = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(folder))
    return cast(Tensor, cast(nn.Module, whole.get_output_embeddings()).weight).detach()


@pytest.mark.parametrize("model_type", each_family(DECODERS))
def test_logits_are_those_of_the_models_own_head(model_type: str, tmp_path: Path) -> None:
    """Bit for bit, from the same states after the final norm."""
    folder = save_causal(model_type, tmp_path)
    unembedding = read_unembedding(files_of(folder))
    assert torch.equal(unembedding.rows, head_of(folder))
    whole = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(folder)).eval()
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        states = whole.base_model(input_ids=ids).last_hidden_state
        expected = whole(input_ids=ids).logits
    assert unembedding.rows.shape == (VOCABULARY, D_MODEL)
    assert torch.equal(unembedding.logits(states[0]), expected[0])


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_tied_or_not(model_type: str, is_tied: bool, tmp_path: Path) -> None:
    folder = save_causal(model_type, tmp_path, tie_word_embeddings=is_tied)
    rows = read_unembedding(files_of(folder)).rows
    assert torch.equal(rows, head_of(folder))
    whole = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(folder))
    inputs = cast(Tensor, cast(nn.Module, whole.get_input_embeddings()).weight)
    assert torch.equal(rows, inputs) == is_tied


def test_a_model_saved_without_its_head_has_the_tied_one(tmp_path: Path) -> None:
    folder = save_model("gpt2", tmp_path)
    assert torch.equal(read_unembedding(files_of(folder)).rows, head_of(folder))


def test_weights_in_several_files_and_in_the_older_format(tmp_path: Path) -> None:
    whole = save_causal("llama", tmp_path / "whole", tie_word_embeddings=False)
    expected = head_of(whole)
    model = cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(whole))
    for name, size in (("sharded", "20KB"), ("older", "1GB")):
        (tmp_path / name).mkdir()
        for path in whole.iterdir():
            if path.suffix != ".safetensors":
                (tmp_path / name / path.name).write_bytes(path.read_bytes())
        if name == "sharded":
            model.save_pretrained(tmp_path / name, max_shard_size=size)
            assert len(list((tmp_path / name).glob("*.safetensors"))) > 1
        else:
            torch.save(model.state_dict(), tmp_path / name / "pytorch_model.bin")
        assert torch.equal(read_unembedding(files_of(tmp_path / name)).rows, expected)


def test_without_an_unembedding_it_says_so(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path / "llama")
    with pytest.raises(InputError, match=r"holds no unembedding.*AutoModelForCausalLM"):
        read_unembedding(files_of(folder))
    encoder = save_model("bert", tmp_path / "bert")
    with pytest.raises(InputError, match="is an encoder"):
        read_unembedding(files_of(encoder))


def test_rows_narrower_than_states_are_refused(tmp_path: Path) -> None:
    folder = save_causal("opt", tmp_path, word_embed_proj_dim=D_MODEL // 2)
    with pytest.raises(InputError, match="reads 16 columns, its states have 32"):
        read_unembedding(files_of(folder))
