"""Fit a linear classifier on frozen vectors, choose on dev, score dev and test.

Nothing is drawn but the permutation of the shuffled labels: the same config and features give the same
classifier, up to the rounding of sums on another machine.
Axes: n examples, d width of a vector.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32
from numpy.typing import NDArray

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.embed.corpus import embed_corpus
from permafrost.stages.embed.features import Features
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.logistic import logistic_regression, told_by_result
from permafrost.stages.fit.metrics import evaluate
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.fit.splits import require_metric, splits
from permafrost.stages.linear.config import ClassifierConfig, LinearConfig
from permafrost.stages.linear.model import LinearModel, inputs
from permafrost.stages.linear.rounding import is_rounding
from permafrost.stages.metrics.vector_map import spread_evenly, vector_map
from permafrost.stages.scoring.answers import SPLITS, answer_metrics, answers_table
from permafrost.stages.scoring.scored import ScoreResult
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class LinearResult:
    """A classifier, and its scores in the layout of every scored method."""

    model: LinearModel
    scores: ScoreResult
    """Metrics also hold `converged`, whether the solver stopped by itself, and `n_iter`, its steps."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, predictions.parquet, linear.safetensors and linear.json."""
        self.scores.save(folder)
        self.model.save(folder)


@dataclass(frozen=True)
class MadeVectors:
    """One vector per text of a corpus, and how they were made."""

    rows: Float32[np.ndarray, "n_texts d"]
    made_as: EmbedConfig | None
    """None for those of a head."""
    choice: Mapping[str, str] = field(default_factory=dict)
    """What was chosen to make them, for tables."""


@dataclass(frozen=True)
class _Fitted:
    model: LinearModel
    made: MadeVectors
    n_iter: int
    dev: float
    """The metric on dev, with the labels used for the choice."""


def run_linear(
    config: LinearConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> LinearResult:
    """Fit every candidate on train, keep the best on dev, and score it with true labels.

    Memory: one float32 vector per text, and about two float64 copies of what the classifier sees of train,
    of which the solver of a support vector machine makes two more. Dev and test are scored in blocks.

    Args:
        config: vectors, classifier and candidates.
        prompt_features: features of the corpus' texts, one per prompt of an ensemble; one for other recipes.
        corpus: a task with classes.
        progress: told the texts done, then the candidates.

    Raises:
        InputError: a task without classes, a split that is missing, one class only in train, f1 of more
            than two classes; see also `embed_corpus`.
    """

    def candidates() -> Iterable[MadeVectors]:
        for vectors in config.vectors:
            made = embed_corpus(vectors, prompt_features, corpus, progress)
            yield MadeVectors(made.vectors, vectors, made.choice)

    return fit_classifier(config, candidates(), corpus, progress)


def fit_classifier(
    config: ClassifierConfig, candidates: Iterable[MadeVectors], corpus: Corpus, progress: Progress
) -> LinearResult:
    """Fit every c on each of the candidates, keep the best on dev, and score it with true labels.

    Args:
        config: classifier and strengths.
        candidates: vectors of the corpus' texts, at least one kind of them, each made when it is needed.
        corpus: a task with classes.
        progress: told the candidates.

    Raises:
        InputError: see `linear_examples`.
    """
    data, (train, dev), scored = linear_examples(config, corpus)
    best: _Fitted | None = None
    for made in candidates:
        for fitted in _candidates(config, made, (train, dev), data, progress):
            if best is None or fitted.dev > best.dev:
                best = fitted
    assert best is not None, "there is at least one candidate"
    return _scored(config, best, scored, data)


def linear_examples(
    config: ClassifierConfig, corpus: Corpus
) -> tuple[FitData, tuple[Examples, Examples], dict[str, Examples]]:
    """What a classifier learns from and is scored on: the corpus, train and dev, and dev and test.

    Raises:
        InputError: a task without classes, a split that is missing, one class only in train, or f1 of more
            than two classes.
    """
    data = _data(corpus)
    require_metric(config.metric, data)
    return (
        data,
        splits(config.seed, config.labels, data),
        {name: data.split(name) for name in SPLITS},
    )


def _data(corpus: Corpus) -> FitData:
    if not corpus.label_names:
        raise InputError(
            f"a linear method needs classes, but the task is {quoted(corpus.task)}; leave the method out for "
            "this task"
        )
    # Without readers: vectors are read through their own stage.
    return FitData({}, corpus.examples, corpus.label_names, corpus.digests, corpus.task)


def _candidates(
    config: ClassifierConfig,
    made: MadeVectors,
    learnt: tuple[Examples, Examples],
    data: FitData,
    progress: Progress,
) -> list[_Fitted]:
    """The classifiers on one kind of vectors, by ascending c."""
    # Imported here: scikit-learn takes a second, which `plan` and a run of cached stages should not pay.
    from sklearn.preprocessing import StandardScaler

    train, dev = learnt
    scaler = StandardScaler(copy=False)
    sides = _sides(made.rows, train)
    rows = inputs(sides, config.pair_features)
    scaler.fit(rows)
    says_nothing = np.tile(is_rounding(sides), rows.shape[1] // sides[0].shape[1])
    scaler.scale_ = np.where(says_nothing, 1.0, np.asarray(scaler.scale_))
    rows = np.asarray(scaler.transform(rows))
    fitted: list[_Fitted] = []
    progress.start("linear", len(config.c), "candidates")
    try:
        for c in sorted(config.c):
            solver = _solved(config, c, rows, train.labels)
            model = LinearModel(
                task=data.task,
                label_names=data.label_names,
                vectors=made.made_as,
                classifier=config.classifier,
                c=c,
                pair_features=config.pair_features,
                classes=solver.classes_.astype(np.int64),
                coef=np.ascontiguousarray(solver.coef_),
                intercept=solver.intercept_,
                mean=np.asarray(scaler.mean_),
                scale=np.asarray(scaler.scale_),
            )
            answers = model.predict(*_sides(made.rows, dev))
            score = evaluate(config.metric, dev.labels, answers)
            fitted.append(_Fitted(model, made, int(np.max(solver.n_iter_)), score))
            progress.advance(1, f"dev {score:.4f}")
    finally:
        progress.finish()
    return fitted


def _solved(
    config: ClassifierConfig, c: float, rows: NDArray[np.float64], labels: NDArray[np.int64]
) -> Any:
    from sklearn.svm import LinearSVC

    if config.classifier == "logistic":
        return logistic_regression(rows, labels, c, config.max_iter)
    # The primal problem, whose solver draws nothing. Pyright takes the type of `dual` from its default.
    dual: Any = False
    with told_by_result():
        return LinearSVC(C=c, dual=dual, max_iter=config.max_iter).fit(rows, labels)


def _scored(
    config: ClassifierConfig, best: _Fitted, scored: dict[str, Examples], data: FitData
) -> LinearResult:
    model = best.model
    answers = {n: (s, _answers(model, best.made.rows, s)) for n, s in scored.items()}
    metrics = {
        **answer_metrics(config.metric, data, answers),
        "choice": {**best.made.choice, "c": model.c},
        "n_parameters": model.n_parameters,
        "converged": best.n_iter < config.max_iter,
        "n_iter": best.n_iter,
    }
    vectors = _map(config.n_map_texts, best.made.rows, scored["test"], data)
    return LinearResult(model, ScoreResult(metrics, answers_table(data, answers), None, vectors))


def _map(
    n_texts: int, vectors: Float32[np.ndarray, "n_texts d"], test: Examples, data: FitData
) -> pa.Table | None:
    picked = spread_evenly(len(test), n_texts)
    if data.task != "classification" or not len(picked):
        return None
    texts = test.texts[picked]
    return vector_map(texts, test.labels[picked], vectors[texts])


def _answers(
    model: LinearModel, vectors: Float32[np.ndarray, "n_texts d"], examples: Examples
) -> Predictions:
    """Classes; the logistic regression also has probabilities."""
    sides = _sides(vectors, examples)
    probabilities = model.probabilities(*sides)
    scores = None
    if probabilities is not None and len(model.label_names) == 2:
        scores = probabilities[:, 1]
    return Predictions(model.predict(*sides), scores, probabilities)


def _sides(
    vectors: Float32[np.ndarray, "n_texts d"], examples: Examples
) -> list[Float32[np.ndarray, "n d"]]:
    return [vectors[side] for side in examples.sides]
