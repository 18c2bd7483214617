"""Vectors of a corpus: what is chosen or fitted sees dev or train, and never test."""

from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import (
    CorpusVectors,
    EmbedConfig,
    WhiteningConfig,
    embed_corpus,
    fit_whitening,
)
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.embed.corpus_features import N_TEXTS, directions, features, graded

TRUTH = directions(0)
LAYERS = {1: directions(1), 2: TRUTH, 3: directions(3)}
AUTO = EmbedConfig(method="hs", layers="auto")
QUIET = SilentProgress()


def with_labels(corpus: Corpus, split: str, seed: int) -> Corpus:
    """The corpus with the labels of one split permuted."""
    table = corpus.examples
    labels = table.column("label").to_numpy().copy()
    mine = np.flatnonzero(np.array(table.column("split").to_pylist()) == split)
    labels[mine] = np.random.default_rng(seed).permutation(labels[mine])
    at = table.schema.get_field_index("label")
    changed = table.set_column(at, table.schema.field("label"), [labels.tolist()])
    return Corpus(corpus.texts, changed, corpus.task, corpus.label_names, corpus.digests)


def test_auto_takes_the_layer_that_dev_prefers_whatever_test_says() -> None:
    corpus = graded(TRUTH)
    found = embed_corpus(AUTO, [features(LAYERS)], corpus, QUIET)
    assert found.layers == (2,)
    assert found.choice == {"layers": "2"}
    np.testing.assert_array_equal(found.vectors, TRUTH)
    other_test = embed_corpus(AUTO, [features(LAYERS)], with_labels(corpus, "test", 5), QUIET)
    assert other_test.layers == (2,)
    other_dev = [
        embed_corpus(AUTO, [features(LAYERS)], with_labels(corpus, "dev", s), QUIET).layers
        for s in range(6)
    ]
    assert any(layers != (2,) for layers in other_dev), "dev labels do not matter"


def test_an_ensemble_chooses_on_its_combined_vectors() -> None:
    noise = directions(7)
    # Each member alone hides the truth; their average shows it.
    members = [features({**LAYERS, 2: TRUTH + noise}), features({**LAYERS, 2: TRUTH - noise})]
    found = embed_corpus(AUTO, members, graded(TRUTH), QUIET)
    assert found.layers == (2,)
    np.testing.assert_allclose(found.vectors, TRUTH, atol=1e-6)


def test_whitening_sees_the_texts_of_train_only() -> None:
    corpus = graded(TRUTH)
    config = EmbedConfig(method="hs", layers="2", whitening=WhiteningConfig())
    found = embed_corpus(config, [features(LAYERS)], corpus, QUIET).vectors
    rows = corpus.split("train")
    train = {*rows.column("text").to_pylist(), *rows.column("text_pair").to_pylist()}
    expected = fit_whitening(WhiteningConfig(), TRUTH[sorted(train)]).apply(TRUTH)
    np.testing.assert_array_equal(found, expected)
    assert len(train) < N_TEXTS


def test_a_fitted_whitening_survives_a_folder_and_does_the_same_to_other_texts(
    tmp_path: Path,
) -> None:
    corpus = graded(TRUTH)
    config = EmbedConfig(method="hs", layers="2", whitening=WhiteningConfig(n_components=3))
    embed_corpus(config, [features(LAYERS)], corpus, QUIET).save(tmp_path)
    again = CorpusVectors.load(tmp_path).whitening
    assert again is not None
    rows = corpus.split("train")
    train = np.unique([rows.column(c).to_numpy() for c in ("text", "text_pair")])
    other = directions(11)
    mean = TRUTH[train].mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(np.cov(TRUTH[train].T.astype(np.float64), bias=True))
    expected = (other - mean) @ vectors[:, ::-1][:, :3] / np.sqrt(values[::-1][:3])
    found = again.apply(other)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, signs * expected, rtol=1e-4, atol=1e-4)
    content = (tmp_path / "whitening.safetensors").read_bytes()
    for damaged in (b"", content[:-20], b"other"):
        (tmp_path / "whitening.safetensors").write_bytes(damaged)
        with pytest.raises(CorruptDataError, match="holds no vectors"):
            CorpusVectors.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "splits", "says"),
    [
        (AUTO, ("train", "test"), "a dev split.*train, test"),
        (
            EmbedConfig(method="hs", layers="2", whitening=WhiteningConfig()),
            ("dev", "test"),
            "texts of train.*dev, test",
        ),
    ],
)
def test_a_missing_split_is_told(config: EmbedConfig, splits: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        embed_corpus(config, [features(LAYERS)], graded(TRUTH, splits), QUIET)


def test_vectors_survive_a_folder(tmp_path: Path) -> None:
    found = embed_corpus(AUTO, [features(LAYERS)], graded(TRUTH), QUIET)
    found.save(tmp_path)
    again = CorpusVectors.load(tmp_path)
    assert again.layers == found.layers
    np.testing.assert_array_equal(again.vectors, found.vectors)
    (tmp_path / "vectors.json").write_text("{")
    with pytest.raises(CorruptDataError, match="holds no vectors"):
        CorpusVectors.load(tmp_path)
