"""Exported classifiers: by sentence-transformers and torch alone, and by Permafrost without the home."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from permafrost.stages.encoder import (
    PredictedClasses,
    PredictedScores,
    export_head,
    load_encoder,
    load_exported,
)
from permafrost.stages.freeze import EncoderSizes, PairFitConfig, UnifiedHead
from permafrost.stages.heads import FirstHead, GlotHead, MeanHead
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError
from tests.stages.encoder.fitted_homes import TEXTS, Home, home_with_features

ModelFolder = Callable[[str], Path]
OTHERS = [*TEXTS[1:], "a river"]


def home_of(model_folder: ModelFolder, tmp_path: Path, model_type: str, capture: str) -> Home:
    return home_with_features(
        tmp_path / "home", model_folder(model_type), capture, store_dtype="float32"
    )


def predicted(encoder: Any, texts: list[str], pairs: list[str] | None = None) -> np.ndarray:
    found = encoder.predict(texts, pairs)
    assert isinstance(found, PredictedClasses)
    assert found.probabilities is not None
    assert found.classes.tolist() == found.probabilities.argmax(1).tolist()
    assert found.names == [found.class_names[i] for i in found.classes.tolist()]
    return found.probabilities


@pytest.mark.parametrize(
    ("model_type", "layer", "head"),
    [
        ("bert", "hidden/2", MeanHead()),
        pytest.param("llama", "hidden/final", FirstHead(), marks=pytest.mark.deep),
    ],
)
def test_a_classifier_of_texts_is_a_chain_of_modules(
    model_folder: ModelFolder, tmp_path: Path, model_type: str, layer: str, head: Any
) -> None:
    home = home_of(model_folder, tmp_path, model_type, f"{layer.replace('/', '=')}@tokens")
    artifact = home.head(head, layer)
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    assert done.form == "plain"
    assert done.difference is not None
    assert done.difference < 2e-5
    ours = predicted(load_encoder(home.path, artifact, device="cpu"), TEXTS)
    shutil.rmtree(home.path)
    model = SentenceTransformer(
        str(done.folder), device="cpu", trust_remote_code=False, local_files_only=True
    )
    logits = model.encode(TEXTS, convert_to_tensor=True)
    np.testing.assert_allclose(torch.softmax(logits, 1).numpy(), ours, rtol=1e-5, atol=1e-5)
    assert model[0].auto_model.config.id2label == {0: "no", 1: "yes"}
    assert model[0].auto_model.config.label2id == {"no": 0, "yes": 1}
    # The same folder without the library, and what is not a tensor or a text is not in it.
    again = predicted(load_exported(done.folder, device="cpu"), TEXTS)
    np.testing.assert_allclose(again, ours, rtol=1e-5, atol=1e-6)
    kinds = {p.suffix for p in done.folder.rglob("*") if p.is_file()}
    assert kinds <= {".json", ".safetensors", ".txt", ".md"}
    card = (done.folder / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "torch.softmax" in card


def test_a_classifier_of_pairs_has_its_layer_beside_the_chain(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    home = home_of(model_folder, tmp_path, "bert", "hidden=2@tokens")
    artifact = home.head(MeanHead(), "hidden/2", "pair_classification")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    ours = predicted(load_encoder(home.path, artifact, device="cpu"), TEXTS, OTHERS)
    shutil.rmtree(home.path)
    model = SentenceTransformer(str(done.folder), device="cpu", local_files_only=True)
    layer = load_file(done.folder / "classifier" / "model.safetensors")
    both = [model.encode(side, convert_to_tensor=True) for side in (TEXTS, OTHERS)]
    logits = torch.nn.functional.linear(
        torch.cat(both, 1), layer["linear.weight"], layer["linear.bias"]
    )
    np.testing.assert_allclose(torch.softmax(logits, 1).numpy(), ours, rtol=1e-5, atol=1e-5)
    assert model[0].auto_model.config.id2label == {0: "none", 1: "one", 2: "both"}
    again = predicted(load_exported(done.folder, device="cpu"), TEXTS, OTHERS)
    np.testing.assert_allclose(again, ours, rtol=1e-5, atol=1e-6)
    # The order of the two texts counts.
    assert (
        np.abs(predicted(load_exported(done.folder, device="cpu"), OTHERS, TEXTS) - ours).max()
        > 1e-4
    )


def test_a_head_that_the_library_lacks_answers_from_its_folder(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    home = home_of(model_folder, tmp_path, "bert", "hidden=2@tokens")
    artifact = home.head(GlotHead(hidden=8, tau=0.3), "hidden/2", "pair_classification")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    assert done.form == "module"
    assert done.why_not_plain is not None
    ours = predicted(load_encoder(home.path, artifact, device="cpu"), TEXTS, OTHERS)
    shutil.rmtree(home.path)
    again = predicted(load_exported(done.folder, device="cpu"), TEXTS, OTHERS)
    assert np.array_equal(again, ours)
    assert "load_exported" in (done.folder / "README.md").read_text()


def test_scores_of_pairs_keep_their_range_in_a_folder(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    home = home_of(model_folder, tmp_path, "gpt2", "hidden=2@tokens,hidden=1-3@last")
    latents = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))
    unified = PairFitConfig(head=UnifiedHead(encoders=EncoderSizes(early=6, late=8)), seed=0)
    heads = {
        "glot": home.head(GlotHead(hidden=8), "hidden/2", "similarity"),
        "layers": home.layers_head(unified, latents),
    }
    for name, artifact in heads.items():
        done = export_head(home.path, artifact, tmp_path / name, "module", device="cpu")
        ours = load_encoder(home.path, artifact, device="cpu").predict(TEXTS, OTHERS)
        again = load_exported(done.folder, device="cpu").predict(TEXTS, OTHERS)
        assert isinstance(ours, PredictedScores)
        assert isinstance(again, PredictedScores)
        assert np.array_equal(again.scores, ours.scores)
        np.testing.assert_allclose(ours.scores, 1 + 4 * ours.similarities)
        with pytest.raises(InputError, match="so it has no classes"):
            export_head(home.path, artifact, tmp_path / "no", device="cpu", use="classifier")
    assert not (tmp_path / "no").exists()


def test_what_does_not_go_together_is_refused(model_folder: ModelFolder, tmp_path: Path) -> None:
    home = home_of(model_folder, tmp_path, "bert", "hidden=2@tokens")
    artifact = home.head(MeanHead(), "hidden/2")
    with pytest.raises(InputError, match="writes adapters alone"):
        export_head(home.path, artifact, tmp_path / "out", "peft", use="classifier")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    encoder = load_exported(done.folder, device="cpu")
    for texts, pairs, says in (
        (["ice"], ["snow"], "trained on single texts"),
        ("ice", None, "a list of texts belongs"),
        (["ice", " "], None, r"texts\[1\] is blank"),
    ):
        with pytest.raises(InputError, match=says):
            encoder.predict(texts, pairs)
    assert predicted(encoder, []).shape == (0, 2)
    # Of the vectors that `encode` gives, the plain form without classes has the same.
    vectors = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors, rtol=1e-5, atol=1e-6)
    config = done.folder / "config.json"
    config.write_text(config.read_text().replace("yes", "perhaps"))
    assert read_json(config)["id2label"]["1"] == "perhaps"
    with pytest.raises(CorruptDataError, match="not the one that was exported"):
        load_exported(done.folder)
