"""Exported folders that sentence-transformers loads by itself."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertModel

from permafrost.stages.encoder import export as export_module
from permafrost.stages.encoder import export_head, load_encoder
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.heads import FirstHead, GlotHead, LastHead, MaxHead, MeanHead
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.diagonal import diagonal
from tests.stages.encoder.fitted_homes import TEXTS, home_with_features
from tests.stages.extraction.tiny_models import each_family, save_model

pytestmark = pytest.mark.deep

ModelFolder = Callable[[str], Path]
HEADS = {"first": FirstHead(), "last": LastHead(), "mean": MeanHead(), "max": MaxHead()}
TOO_LONG = "snow and ice " * 40
CUT = {
    "bert": "hidden/2",
    "roberta": "hidden/3",
    "xlm-roberta": "hidden/1",
    "distilbert": "hidden/2",
    "mpnet": "hidden/2",
}
"""Architectures whose blocks behind the one that is read are left out."""
WHOLE = (
    "modernbert",
    "gpt2",
    "gpt_neox",
    "opt",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "phi3",
)
"""Architectures of which only the state behind the final norm can be read."""


def by_library(folder: Path, texts: list[str]) -> np.ndarray:
    """Loaded without trust in any code that is not the library's."""
    modules = json.loads((folder / "modules.json").read_text())
    assert all(m["type"].startswith("sentence_transformers.") for m in modules)
    model = SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=False, local_files_only=True
    )
    return model.encode(texts, show_progress_bar=False, batch_size=3)


@pytest.mark.few(2)
@diagonal(
    {
        "model_type": list(CUT),
        "kind": list(HEADS),
        "task": ["classification", "similarity"],
    }
)
def test_poolings_of_any_block_of_an_encoder(
    model_folder: ModelFolder, tmp_path: Path, model_type: str, kind: str, task: str
) -> None:
    layer = CUT[model_type]
    home = home_with_features(
        tmp_path / "home", model_folder(model_type), "hidden=all@tokens", store_dtype="float32"
    )
    artifact = home.head(HEADS[kind], layer, task)
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert (done.form, done.why_not_plain, done.d_out) == ("plain", None, 32)
    texts = [*TEXTS, TOO_LONG]
    ours = load_encoder(home.path, artifact, device="cpu").encode(texts)
    np.testing.assert_allclose(by_library(done.folder, texts), ours, rtol=1e-5, atol=1e-5)
    config = read_json(done.folder / "config.json")
    assert config.get("num_hidden_layers", config.get("n_layers")) == int(layer[-1])
    assert (done.folder / "2_Dense").exists() == (task == "similarity")
    assert not list(tmp_path.glob(".draft-*"))


@pytest.mark.few(2)
@pytest.mark.parametrize("model_type", each_family(WHOLE))
def test_poolings_behind_the_final_norm(
    model_folder: ModelFolder, tmp_path: Path, model_type: str
) -> None:
    home = home_with_features(
        tmp_path / "home", model_folder(model_type), "hidden=final@tokens", store_dtype="float32"
    )
    artifact = home.head(MeanHead(), "hidden/final")
    done = export_head(home.path, artifact, tmp_path / "out", "plain", device="cpu")
    texts = [*TEXTS, TOO_LONG]
    ours = load_encoder(home.path, artifact, device="cpu").encode(texts)
    np.testing.assert_allclose(by_library(done.folder, texts), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.deep
def test_minilm_at_full_length(tmp_path: Path) -> None:
    home = home_with_features(tmp_path / "home", "minilm", "hidden=4@tokens", store_dtype="float32")
    artifact = home.head(MeanHead(), "hidden/4", "similarity")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    texts = [*TEXTS, "A frozen lake, seen from above. " * 100]
    model = SentenceTransformer(str(done.folder), device="cpu", local_files_only=True)
    assert model.max_seq_length == home.target.max_length == 512
    ours = load_encoder(home.path, artifact, device="cpu").encode(texts)
    np.testing.assert_allclose(model.encode(texts), ours, rtol=1e-5, atol=1e-5)


def test_a_store_in_float16_differs_by_its_rounding_alone(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    home = home_with_features(tmp_path / "home", model_folder("bert"), "hidden=3@tokens")
    artifact = home.head(MaxHead(), "hidden/3")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    theirs = by_library(done.folder, TEXTS)
    ours = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    # A maximum is one of the rounded numbers: within half a unit in the last place, and the noise.
    assert np.all(np.abs(theirs - ours) <= np.abs(theirs) * 2.0**-11 + 1e-5)
    assert not np.allclose(theirs, ours, rtol=1e-6, atol=1e-7)
    assert done.difference is not None
    assert done.difference < 2e-5


def test_a_decoder_without_a_padding_token(tmp_path: Path) -> None:
    folder = save_model("gpt2", tmp_path / "gpt2")
    settings = read_json(folder / "tokenizer_config.json")
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    home = home_with_features(
        tmp_path / "home", folder, "hidden=final@tokens", store_dtype="float32"
    )
    artifact = home.head(MeanHead(), "hidden/final")
    done = export_head(home.path, artifact, tmp_path / "out", "plain", device="cpu")
    ours = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(by_library(done.folder, TEXTS), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", [MeanHead(), LastHead()], ids=lambda h: h.kind)
def test_a_tokenizer_that_names_no_token_to_pad_with(tmp_path: Path, head: Any) -> None:
    folder = save_model("gpt2", tmp_path / "gpt2")
    settings = read_json(folder / "tokenizer_config.json")
    for name in ("pad_token", "eos_token", "bos_token", "unk_token"):
        del settings[name]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    home = home_with_features(tmp_path / "home", folder, "hidden=final@tokens")
    artifact = home.head(head, "hidden/final")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert done.form == "module"
    assert "the tokenizer names no token" in str(done.why_not_plain)
    with pytest.raises(InputError, match=r"names no token .*export with --form module"):
        export_head(home.path, artifact, tmp_path / "plain", "plain", device="cpu")
    assert not (tmp_path / "plain").exists()


def test_weights_without_a_pooler_load_without_random_numbers(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = save_model("bert", tmp_path / "bert")
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)
    assert not any("pooler" in name for name in load_file(folder / "model.safetensors"))
    home = home_with_features(tmp_path / "home", folder, "hidden=3@tokens", store_dtype="float32")
    artifact = home.head(FirstHead(), "hidden/3")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    ours = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(by_library(done.folder, TEXTS), ours, rtol=1e-5, atol=1e-5)
    pooler = [v for k, v in load_file(done.folder / "model.safetensors").items() if "pooler" in k]
    assert len(pooler) == 2
    assert not any(v.any() for v in pooler)


def test_vectors_are_compared_as_in_training(model_folder: ModelFolder, tmp_path: Path) -> None:
    home = home_with_features(tmp_path / "home", model_folder("bert"), "hidden=3@tokens")
    for task, similarity in (("unlabelled", "dot"), ("similarity", "cosine")):
        artifact = home.head(MeanHead(), "hidden/3", task)
        done = export_head(home.path, artifact, tmp_path / task, device="cpu")
        model = SentenceTransformer(str(done.folder), device="cpu", local_files_only=True)
        assert model.similarity_fn_name == similarity


@pytest.mark.parametrize(
    ("head", "capture", "layer", "recipe", "settings", "says"),
    [
        (GlotHead(hidden=8), "hidden=2", "hidden/2", "plain", {}, "a head of kind 'glot'"),
        (MeanHead(), "hidden=2", "hidden/2", "plain:specials=exclude", {}, "specials=exclude"),
        (MeanHead(), "hidden=2", "hidden/2", "plain:bos=omit", {}, "bos=omit"),
        (MeanHead(), "hidden=2", "hidden/2", "template:template=On {text}", {}, "kind=template"),
        (MeanHead(), "hidden=0", "hidden/0", "plain", {}, "reads hidden/0"),
        (MeanHead(), "values=2", "values/2", "plain", {}, "reads values/2"),
        (MeanHead(), "hidden=2", "hidden/2", "plain", {"dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_what_the_library_cannot_compute_is_told(
    model_folder: ModelFolder,
    tmp_path: Path,
    head: Any,
    capture: str,
    layer: str,
    recipe: str,
    settings: dict[str, str],
    says: str,
) -> None:
    home = home_with_features(
        tmp_path / "home", model_folder("bert"), f"{capture}@tokens", parse_recipe(recipe), **settings
    )  # fmt: skip
    artifact = home.head(head, layer)
    with pytest.raises(InputError, match=says) as refused:
        export_head(home.path, artifact, tmp_path / "out", "plain", device="cpu")
    assert "export with --form module" in str(refused.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home"]
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert done.form == "module"
    assert says in str(done.why_not_plain)


def test_a_block_before_the_last_state_of_a_decoder_is_refused(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    home = home_with_features(tmp_path / "home", model_folder("llama"), "hidden=3@tokens")
    artifact = home.head(MeanHead(), "hidden/3")
    with pytest.raises(InputError, match="last state of a llama model, behind all norms"):
        export_head(home.path, artifact, tmp_path / "out", "plain", device="cpu")


def test_a_folder_that_would_give_other_vectors_is_not_written(
    model_folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_features(tmp_path / "home", model_folder("bert"), "hidden=3@tokens")
    artifact = home.head(MeanHead(), "hidden/3")
    write = export_module.write_plain

    def write_wrong(fitted: Any, folder: Path, use: Any) -> None:
        write(fitted, folder, use)
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({"word_embedding_dimension": 32, "pooling_mode_max_tokens": True})
        )

    monkeypatch.setattr(export_module, "write_plain", write_wrong)
    with pytest.raises(InputError, match="differs from our vectors by"):
        export_head(home.path, artifact, tmp_path / "out", "plain", device="cpu")
    assert not (tmp_path / "out").exists()
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert done.form == "module"
    assert "differs from our vectors by" in str(done.why_not_plain)
    assert not (done.folder / "1_Pooling").exists()


def test_without_the_library_a_plain_folder_cannot_be_checked(
    model_folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_features(tmp_path / "home", model_folder("bert"), "hidden=3@tokens")
    artifact = home.head(MeanHead(), "hidden/3")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="which is not installed here"):
        export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
    done = export_head(home.path, artifact, tmp_path / "out", "module", device="cpu")
    assert done.why_not_plain is None
