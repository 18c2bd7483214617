"""Classes named beside transformers' own are refused, and nothing is where they have its names."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from permafrost.stages.extraction.files import CONFIG, TOKENIZER_CONFIG, BackboneConfig
from permafrost.stages.extraction.target import ResolvedBackbone, resolve_backbone
from permafrost.storage.errors import InputError

Resolve = Callable[..., ResolvedBackbone]


@pytest.fixture
def resolve(tmp_path: Path, model_folder: Callable[[str], Path]) -> Resolve:
    """Finds a copy of a tiny model, one file of which has an `auto_map`."""

    def found(model_type: str, file: str, auto_map: Any) -> ResolvedBackbone:
        folder = tmp_path / model_type
        shutil.copytree(model_folder(model_type), folder)
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**content, "auto_map": auto_map}))
        return resolve_backbone(BackboneConfig(source=str(folder)), "float32", "none")

    return found


@pytest.mark.parametrize(
    ("auto_map", "message"),
    [
        (
            {"AutoModel": "modeling_enc.MistralEncoderModel"},
            r"config.json names the class 'modeling_enc.MistralEncoderModel' \(auto_map, AutoModel\).*"
            "transformers' own MistralModel for 'mistral'",
        ),
        ({"AutoConfig": "org/name--configuration_enc.EncConfig"}, r"EncConfig' .*MistralConfig"),
        (
            {"AutoModelForCausalLM": "modeling_x.XForCausalLM"},
            r"XForCausalLM' .*MistralForCausalLM",
        ),
        # The same name, and attention in both directions: gte-Qwen2 is of this form.
        (
            {"AutoModel": "modeling_enc.MistralModel"},
            r"modeling_enc.MistralModel' .*own MistralModel",
        ),
    ],
)
def test_another_model_is_refused(resolve: Resolve, auto_map: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve("mistral", CONFIG, auto_map)


def test_settings_of_transformers_name_are_read_as_its_own(resolve: Resolve) -> None:
    named = {"AutoConfig": "configuration_enc.MistralConfig"}
    assert resolve("mistral", CONFIG, named).sizes.model_type == "mistral"


def test_a_model_that_transformers_took_over_is_read_as_its_own(resolve: Resolve) -> None:
    """Phi-3's config.json, as it is on the hub."""
    named = {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    }
    assert resolve("phi3", CONFIG, named).sizes.model_type == "phi3"


@pytest.mark.parametrize(
    ("auto_map", "name"),
    [
        ({"AutoTokenizer": ["tokens.Mine", None]}, "tokens.Mine"),
        (["tokens.Mine", "tokens.MineFast"], "tokens.Mine"),
        # One of transformers by its name may still add other tokens.
        ({"AutoTokenizer": [None, "tokens.BertTokenizerFast"]}, "tokens.BertTokenizerFast"),
    ],
)
def test_another_tokenizer_is_refused(resolve: Resolve, auto_map: Any, name: str) -> None:
    said = rf"tokenizer_config.json names the class '{name}' \(auto_map, AutoTokenizer\)"
    with pytest.raises(InputError, match=said):
        resolve("bert", TOKENIZER_CONFIG, auto_map)
