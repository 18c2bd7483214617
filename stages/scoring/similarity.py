"""Score vectors on graded pairs: the correlation of cosines with human labels.

Source: the STS convention of mteb, whose main score is the Spearman correlation of the cosines; FREEZE!,
section 4.2, also reports Pearson, and so do we. Labels are never rounded.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import overlap_metrics
from permafrost.stages.embed.corpus import CorpusVectors
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import Scores, predictions_table
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_SPLITS = ("dev", "test")
_PAIRS_AT_A_TIME = 1024
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
_ROUNDING = 1e-12
"""Cosines of float32 vectors that differ by less count as equal."""


class EqualCosinesError(InputError):
    """All cosines of a split are equal, so that they correlate with nothing."""


class SimilarityConfig(BaseModel):
    """How cosines are compared with labels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Literal["spearman", "pearson"] = "spearman"
    """Which correlation is the result; both are recorded."""


def score_pairs(
    config: SimilarityConfig,
    vectors: Float32[np.ndarray, "n_texts d"],
    corpus: Corpus,
    *,
    choice: Mapping[str, str | int | float | bool | None] | None = None,
    n_parameters: int = 0,
) -> Scores:
    """Correlate the cosines of the dev and test pairs with their labels.

    Args:
        config: which correlation is the result.
        vectors: one per text of the corpus, in its order.
        corpus: a corpus of kind `similarity`.
        choice: settings of the vectors that were chosen on dev, for the report.
        n_parameters: number of trained parameters behind the vectors; 0 for a training-free method.

    Returns:
        metric, dev, test, n_dev, n_test, choice, n_parameters; overlap, n_clean_test and clean_test (see
        `overlap_metrics`); `{dev,test}_{spearman,pearson}`. Predictions are cosines, without a score.

    Raises:
        InputError: the corpus is of another kind, has neither dev nor test, or another number of texts than
            vectors; a vector is zero or not finite; or all labels of a split are equal.
        EqualCosinesError: all cosines of a split are equal.
    """
    _check(vectors, corpus)
    scores: dict[str, dict[str, float | None]] = {}
    tables: list[pa.Table] = []
    for split in _SPLITS:
        scores[split] = {"spearman": None, "pearson": None}
        if split in corpus.splits:
            table = _predictions(split, vectors, corpus)
            tables.append(table)
            cosines, labels = (table.column(c).to_numpy() for c in ("prediction", "label"))
            if np.ptp(cosines) <= _ROUNDING:
                raise EqualCosinesError(
                    f"all cosines of the {len(cosines)} {split} pairs are {cosines[0]:.6g}, so they "
                    "correlate with nothing; the method does not tell texts apart"
                )
            _require_spread(labels, split)
            scores[split] = {
                "spearman": spearman(cosines, labels),
                "pearson": pearson(cosines, labels),
            }
    test = tables[-1] if "test" in corpus.splits else None
    predictions = pa.concat_tables(tables)
    sizes = Counter(predictions.column("split").to_pylist())
    metrics = {
        "metric": config.metric,
        **{split: scores[split][config.metric] for split in _SPLITS},
        **{f"n_{split}": sizes[split] for split in _SPLITS},
        "majority": None,
        **({} if test is None else overlap_of_pairs(config, test, corpus)),
        "choice": dict(choice or {}),
        "n_parameters": n_parameters,
        **{f"{split}_{name}": v for split in _SPLITS for name, v in scores[split].items()},
    }
    return Scores(metrics, identified(predictions, corpus.examples, corpus.digests, ()))


def require_graded(corpus: Corpus) -> None:
    """Check that vectors can be scored on a corpus and shown in a report.

    Raises:
        InputError: there are no graded pairs, there is no test split, or all labels of a split are equal.
    """
    _require_pairs(corpus)
    if "test" not in corpus.splits:
        raise InputError(
            f"the corpus has the splits {', '.join(corpus.splits)} and no test pairs, whose score is the "
            f"result. {advice_on_splits(['test'])}"
        )
    for split in _SPLITS:
        if split in corpus.splits:
            labels = corpus.split(split).column("label").to_numpy()
            _require_spread(labels, split)


def overlap_of_pairs(
    config: SimilarityConfig, test: pa.Table, corpus: Corpus
) -> dict[str, float | int | None]:
    """See `overlap_metrics`, for the predictions of the test pairs.

    The clean part has no score if its predictions or its labels are all equal.
    """
    first, second, predicted, labels = (
        test.column(c).to_numpy() for c in ("text", "text_b", "prediction", "label")
    )

    def measure(clean: NDArray[np.bool_]) -> float | None:
        is_varied = np.ptp(predicted[clean]) > _ROUNDING and np.ptp(labels[clean]) > 0
        return CORRELATIONS[config.metric](predicted[clean], labels[clean]) if is_varied else None

    return overlap_metrics(corpus.examples, (first, second), measure)


def score_vectors(config: SimilarityConfig, folder: Path, corpus: Corpus) -> Scores:
    """`score_pairs` of the vectors that the stage `embed` published in `folder`."""
    vectors = CorpusVectors.load(folder)
    return score_pairs(config, vectors.vectors, corpus, choice=vectors.choice)


def _predictions(split: str, vectors: NDArray[np.float32], corpus: Corpus) -> pa.Table:
    pairs = corpus.split(split)
    first, second = (pairs.column(c).to_numpy() for c in ("text", "text_pair"))
    labels, cosines = pairs.column("label").to_numpy(), _cosines(vectors, first, second, corpus)
    return predictions_table(split, (first, second), labels, cosines)


def _cosines(
    vectors: NDArray[np.float32],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    corpus: Corpus,
) -> NDArray[np.float64]:
    parts: list[NDArray[np.float64]] = []
    for start in range(0, len(first), _PAIRS_AT_A_TIME):
        chosen = slice(start, start + _PAIRS_AT_A_TIME)
        a_PD = vectors[first[chosen]].astype(np.float64)
        b_PD = vectors[second[chosen]].astype(np.float64)
        aa, bb, ab = (
            np.einsum("pd,pd->p", x, y) for x, y in ((a_PD, a_PD), (b_PD, b_PD), (a_PD, b_PD))
        )
        for texts, squares in ((first[chosen], aa), (second[chosen], bb)):
            broken = ~np.isfinite(squares) | (squares == 0)
            if broken.any():
                _refuse_vector(int(texts[broken.argmax()]), vectors, corpus)
        # One square root of the product: a text with itself then has a cosine of exactly 1, so that pairs of
        # equal texts share their rank.
        parts.append(ab / np.sqrt(aa * bb))
    return np.concatenate(parts)


def _check(vectors: NDArray[np.float32], corpus: Corpus) -> None:
    _require_pairs(corpus)
    if len(vectors) != len(corpus.texts):
        raise InputError(
            f"there are {len(vectors)} vectors for {len(corpus.texts)} texts; embed the texts of this "
            "corpus, in its order"
        )


def _require_pairs(corpus: Corpus) -> None:
    if corpus.task != "similarity":
        raise InputError(
            f"cosines are scored on a task of kind 'similarity', the corpus is of kind "
            f"{quoted(corpus.task)}; name a corpus with graded pairs"
        )
    if not set(_SPLITS) & set(corpus.splits):
        raise InputError(
            f"the corpus has the splits {', '.join(corpus.splits)} and neither dev nor test; name one "
            "of its files or splits so"
        )


def _refuse_vector(text: int, vectors: NDArray[np.float32], corpus: Corpus) -> None:
    problem = "zero" if np.isfinite(vectors[text]).all() else "not finite"
    raise InputError(
        f"the vector of text {text} ({quoted(corpus.texts[text][:60])}) is {problem}, so it has no cosine "
        "with any other; check the method that made it, or remove the text"
    )


def _require_spread(labels: NDArray[np.float64], split: str) -> None:
    if np.ptp(labels) == 0:
        raise InputError(
            f"all labels of the {len(labels)} {split} pairs are {labels[0]:.6g}, so they correlate with "
            "nothing; use a split with different labels"
        )
