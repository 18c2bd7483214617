"""Exported linear classifiers: by sentence-transformers and torch, and by Permafrost without the home."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import permafrost
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.embed import EmbedConfig, required_arrays
from permafrost.stages.encoder import (
    PredictedClasses,
    export_head,
    load_encoder,
    load_exported,
)
from permafrost.stages.extraction.recipes import MetaEolRecipe
from permafrost.stages.linear import LinearModel, PairFeatures
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import InputError
from tests.stages.encoder.fitted_homes import TEXTS, Home, home_with_features

pytestmark = pytest.mark.deep

ModelFolder = Callable[[str], Path]
OTHERS = [*TEXTS[1:], "a river"]
WIDE = {"full": 4, "concat": 2}


def published(
    home: Home,
    vectors: dict[str, str],
    *others: Home,
    task: TaskKind = "classification",
    classifier: str = "logistic",
    classes: tuple[int, ...] = (0, 1),
    pair_features: PairFeatures = "full",
) -> str:
    """Publish a classifier whose weights are random, with two classes or three; returns its artifact."""
    config, rng = EmbedConfig.model_validate(vectors), np.random.default_rng(0)
    arrays = required_arrays(config, home.target.sizes)
    width = config.method.width(config.of, home.target.sizes)
    width *= 1 if task == "classification" else WIDE[pair_features]
    n_rows = 1 if len(classes) == 2 else len(classes)
    model = LinearModel(
        task=task,
        label_names=("no", "yes", "perhaps")[: max(classes) + 1],
        vectors=config,
        classifier=classifier,  # pyright: ignore[reportArgumentType]
        c=0.1,
        pair_features=pair_features,
        classes=np.array(classes),
        coef=rng.normal(size=(n_rows, width)),
        intercept=rng.normal(size=n_rows),
        mean=rng.normal(size=width),
        scale=rng.uniform(0.5, 2, width),
    )
    stores = (home, *others)
    read = (f"features/{one.store.store_id}/{array}" for one in stores for array in arrays)
    inputs = (f"corpus/{0:032x}", *read)
    spec = ArtifactSpec(stage="linear", config={"of": vectors, "task": task}, inputs=inputs)
    with ArtifactStore(home.path).publishing(spec, {}) as draft:
        model.save(draft.folder)
    return str(spec.ref)


def home_of(folder: Path, tmp_path: Path, capture: str) -> Home:
    return home_with_features(tmp_path / "home", folder, capture, store_dtype="float32")


def predicted(encoder: Any, texts: list[str], pairs: list[str] | None = None) -> PredictedClasses:
    found = encoder.predict(texts, pairs)
    assert isinstance(found, PredictedClasses)
    return found


def shares_of(found: PredictedClasses) -> np.ndarray:
    assert found.probabilities is not None
    return found.probabilities


@pytest.mark.parametrize(
    ("vectors", "classes"),
    [
        # The folder has two of three blocks, of which `half` of three are others.
        ({"method": "mean", "layers": "-2", "normalise": "l2"}, (0, 1)),
        ({"method": "last", "layers": "3"}, (0, 1, 2)),
    ],
)
def test_a_classifier_of_texts_is_a_chain_of_modules(
    model_folder: ModelFolder, tmp_path: Path, vectors: dict[str, str], classes: tuple[int, ...]
) -> None:
    home = home_of(model_folder("bert"), tmp_path, "hidden=1-3@tokens")
    artifact = published(home, vectors, classes=classes)
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    assert done.form == "plain"
    assert done.difference is not None
    assert done.difference < 2e-5
    plain = export_head(home.path, artifact, tmp_path / "vectors", device="cpu")
    ours = load_encoder(home.path, artifact, device="cpu")
    expected, encoded = predicted(ours, TEXTS), ours.encode(TEXTS)
    shutil.rmtree(home.path)
    model = SentenceTransformer(str(done.folder), device="cpu", local_files_only=True)
    shares = torch.softmax(model.encode(TEXTS, convert_to_tensor=True), 1).numpy()
    np.testing.assert_allclose(shares, shares_of(expected), rtol=1e-4, atol=1e-5)
    names = dict(enumerate(("no", "yes", "perhaps")[: len(classes)]))
    assert model[0].auto_model.config.id2label == names
    again = predicted(load_exported(done.folder, device="cpu"), TEXTS)
    assert again.names == expected.names
    np.testing.assert_allclose(shares_of(again), shares_of(expected), rtol=1e-4, atol=1e-6)
    assert len(set(shares_of(again)[:, 0].tolist())) == len(TEXTS)
    # Without `--as classifier` it is the vectors that the classifier reads.
    vectors_of = SentenceTransformer(str(plain.folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(vectors_of.encode(TEXTS), encoded, rtol=1e-4, atol=1e-5)
    card = (done.folder / "README.md").read_text()
    assert "A linear classifier on vectors of a frozen backbone" in card
    assert "logistic classifier, c 0.1" in card


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("vectors", "facts", "why"),
    [
        ({"layers": "2"}, {"task": "pair_classification"}, "pair_features: full"),
        ({"layers": "2"}, {"classifier": "svm"}, "no probabilities"),
        ({"layers": "2"}, {"classes": (0, 2)}, "'yes', so it has no logit"),
        ({"layers": "1-2", "method": "hs"}, {}, "no pooling like the method 'hs'"),
        ({"layers": "1-2"}, {}, "pools one layer, but hidden/1, hidden/2 are read"),
    ],
)
def test_what_the_library_lacks_answers_from_its_folder(
    model_folder: ModelFolder,
    tmp_path: Path,
    vectors: dict[str, str],
    facts: dict[str, Any],
    why: str,
) -> None:
    home = home_of(model_folder("bert"), tmp_path, "hidden=1-3@tokens")
    artifact = published(home, vectors, **facts)
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    assert done.form == "module"
    assert why in (done.why_not_plain or "")
    pairs = OTHERS if facts.get("task") else None
    expected = predicted(load_encoder(home.path, artifact, device="cpu"), TEXTS, pairs)
    with pytest.raises(InputError, match=r"cannot be exported for sentence-transformers alone"):
        export_head(home.path, artifact, tmp_path / "no", "plain", use="classifier")
    shutil.rmtree(home.path)
    exported = load_exported(done.folder, device="cpu")
    again = predicted(exported, TEXTS, pairs)
    assert again.names == expected.names
    if facts.get("classifier"):
        assert again.probabilities is expected.probabilities is None
    else:
        assert np.array_equal(shares_of(again), shares_of(expected))
    # The library has its vectors where Permafrost is installed.
    model = SentenceTransformer(str(done.folder), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(model.encode(TEXTS), exported.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_the_prompts_of_an_ensemble_go_along(model_folder: ModelFolder, tmp_path: Path) -> None:
    recipe = MetaEolRecipe(prompts=("{text} is about", "It says {text} and"))
    homes = [
        home_with_features(
            tmp_path / "home", model_folder("gpt2"), "hidden=2@tokens", one, store_dtype="float32"
        )
        for one in recipe.members()
    ]
    first, second = homes
    artifact = published(first, {"layers": "2", "method": "last", "normalise": "l2"}, second)
    done = export_head(first.path, artifact, tmp_path / "out", device="cpu", use="classifier")
    assert (done.form, done.why_not_plain) == (
        "module",
        "sentence-transformers reads a text once, but its vector is made of 2 prompts",
    )
    expected = predicted(load_encoder(first.path, artifact, device="cpu"), TEXTS)
    shutil.rmtree(first.path)
    exported = load_exported(done.folder, device="cpu")
    assert len(exported.targets) == 2
    assert np.array_equal(shares_of(predicted(exported, TEXTS)), shares_of(expected))
    model = SentenceTransformer(str(done.folder), device="cpu", trust_remote_code=True)
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(vectors, exported.encode(TEXTS), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_its_vectors_are_embedded_from_the_store(model_folder: ModelFolder, tmp_path: Path) -> None:
    home = home_of(model_folder("bert"), tmp_path, "hidden=2@tokens")
    artifact = published(home, {"layers": "2", "method": "mean"})
    made = permafrost.encode([*TEXTS, "a river"], head=artifact, home=home.path, device="cpu")
    alone = load_encoder(home.path, artifact, device="cpu").encode([*TEXTS, "a river"])
    np.testing.assert_allclose(made, alone, rtol=1e-5, atol=1e-6)
