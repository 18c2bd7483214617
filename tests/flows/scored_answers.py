"""Whether a trained head says of test texts what its score kept."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

import permafrost
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.metrics.identified import probability_columns


def answers_as_scored(
    home: Path,
    head: str,
    scored: Path,
    corpus: Corpus,
    rtol: float = 2e-5,
    atol: float = 2e-6,
    backbone: Path | None = None,
) -> int:
    """Check the test examples; returns how many columns of numbers were compared.

    Features are the same; sums of float32 numbers are batched differently. Files of earlier versions have the
    probability of class 1 alone."""
    kept = pq.read_table(scored / "predictions.parquet")
    kept = kept.filter(pc.field("split") == "test")
    texts = [corpus.texts[i] for i in kept["text"].to_pylist()]
    pairs = None
    if "text_b" in kept.column_names:
        pairs = [corpus.texts[i] for i in kept["text_b"].to_pylist()]
    found = permafrost.predict(texts, pairs, head=head, home=home, backbone=backbone, device="cpu")
    if isinstance(found, permafrost.PredictedScores):
        expected = kept["prediction"].to_numpy()
        np.testing.assert_allclose(found.similarities, expected, rtol=rtol, atol=atol)
        assert np.ptp(expected) > 0
        return 1
    assert found.classes.tolist() == kept["prediction"].to_pylist()
    if "prediction_name" not in kept.column_names:
        assert found.probabilities is not None
        shares = found.probabilities[:, 1]
        np.testing.assert_allclose(shares, kept["score"].to_numpy(), rtol=rtol, atol=atol)
        return 1
    assert found.names == kept["prediction_name"].to_pylist()
    columns = [c for c in probability_columns(found.class_names) if c in kept.column_names]
    for number, column in enumerate(columns):
        assert found.probabilities is not None
        shares = found.probabilities[:, number]
        np.testing.assert_allclose(shares, kept[column].to_numpy(), rtol=rtol, atol=atol)
    assert (found.probabilities is None) == (not columns)
    return len(columns)
