"""Linear classifiers on the vectors of heads, against the head and scikit-learn called directly."""

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.fit import FitConfig, LoadedHead, TaskFacts, to_tensors
from permafrost.stages.linear import (
    LinearResult,
    OnHeadConfig,
    drawn_head,
    load_linear,
    run_on_head,
)
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.linear.class_corpora import of_split, singles

FIT = FitConfig(head={"kind": "scorer", "hidden": 4}, layer="hidden/2", seed=3)


def reader_of(vectors: np.ndarray) -> InMemoryReader:
    """Texts of two tokens each."""
    tokens = np.repeat(vectors, 2, axis=0)
    tokens[1::2] += 1
    offsets = np.arange(0, len(tokens) + 1, 2, dtype=np.int64)
    return InMemoryReader("hidden/2", Ragged(tokens, offsets))


def fitted(head: LoadedHead, corpus: Corpus, reader: InMemoryReader) -> LinearResult:
    config = OnHeadConfig(classifier="svm", c=(0.1,))
    return run_on_head(config, head, reader, corpus, SilentProgress())


def test_it_is_scikit_learns_on_the_heads_vectors(tmp_path):
    corpus, vectors = singles(n_classes=3)
    reader = reader_of(vectors)
    head = drawn_head(FIT, reader.width, corpus)
    found = fitted(head, corpus, reader)
    (_, rows), *_ = reader.in_order(len(vectors))
    pooled = head.embed(*to_tensors(rows, torch.device("cpu"))).double().numpy()
    train, _, labels = of_split(corpus, "train")
    test, _, _ = of_split(corpus, "test")
    reference = make_pipeline(StandardScaler(), LinearSVC(C=0.1, dual=False, max_iter=5000))
    guesses = reference.fit(pooled[train], labels).predict(pooled[test])
    said = [r for r in found.scores.predictions.to_pylist() if r["split"] == "test"]
    assert [r["prediction"] for r in said] == guesses.tolist()
    assert found.scores.metrics["choice"] == {"c": 0.1}
    found.save(tmp_path)
    again = load_linear(tmp_path)
    assert again.vectors is None
    assert again.predict(pooled[test]).tolist() == guesses.tolist()


def test_an_untrained_head_is_that_with_which_a_fit_begins():
    corpus, vectors = singles()
    reader = reader_of(vectors)
    one, same = (drawn_head(FIT, reader.width, corpus) for _ in range(2))
    other = drawn_head(FIT.model_copy(update={"seed": 4}), reader.width, corpus)
    begun = LoadedHead(
        FIT, reader.width, TaskFacts("classification", corpus.label_names), epoch=1, dev=0.0
    )
    for (name, a), (_, b), (_, c), (_, d) in zip(
        *(h.named_parameters() for h in (one, same, begun, other)), strict=True
    ):
        assert torch.equal(a, b), name
        assert torch.equal(a, c), name
        if name.endswith("weight") and a.ndim == 2:
            assert not torch.equal(a, d), name
