"""How well frozen vectors do a task: by a linear model on classes, by the plain cosine on graded pairs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.fit.data import FitData
from permafrost.stages.fit.logistic import best_regression
from permafrost.stages.fit.metrics import evaluate
from permafrost.stages.fit.splits import require_metric
from permafrost.stages.linear.config import ClassMetric, PairFeatures, Strengths
from permafrost.stages.linear.model import inputs
from permafrost.stages.linear.rounding import is_rounding
from permafrost.stages.scoring.similarity import (
    EqualCosinesError,
    SimilarityConfig,
    require_graded,
    score_pairs,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class LinearProbe(BaseModel):
    """A logistic regression on vectors that are standardised on the training texts.

    Graded pairs need no such model: their score is the Spearman correlation of cosines and labels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    c: Strengths = (1.0,)
    """Inverse regularisation strengths; the best on dev is kept, the smallest of equal ones."""
    metric: ClassMetric = "accuracy"
    """Metric for classes, compared on dev and reported."""
    pair_features: PairFeatures = "full"
    """How the two vectors of a pair become the model's input; see `LinearConfig`."""


@dataclass(frozen=True)
class TaskScore:
    """How well vectors do a task."""

    metric: str
    dev: float
    test: float


def require_scorable(config: LinearProbe, corpus: Corpus) -> None:
    """Check before any work that a corpus can be scored.

    Raises:
        InputError: there are no labels, a split is missing, train has one class only, `f1` is used with more
            than two classes, or all grades are equal.
    """
    needed = ("dev", "test") if corpus.task == "similarity" else ("train", "dev", "test")
    missing = [split for split in needed if split not in corpus.splits]
    if corpus.task == "unlabelled" or missing:
        raise InputError(
            f"a task is scored by its labels, in the splits {', '.join(needed)}, but this is a corpus of "
            f"kind {corpus.task} with {', '.join(corpus.splits)}; name a labelled task with these splits. "
            f"{advice_on_splits(missing or needed)}"
        )
    if corpus.task == "similarity":
        require_graded(corpus)
    else:
        classes = np.unique(corpus.split("train").column("label").to_numpy()).astype(np.int64)
        if len(classes) < 2:
            raise InputError(
                f"all {corpus.split('train').num_rows} training examples have the class "
                f"{quoted(corpus.label_names[classes[0]])}; nothing can be fitted, so give examples of "
                "another class"
            )
        require_metric(config.metric, _data(corpus))


def _data(corpus: Corpus) -> FitData:
    return FitData({}, corpus.examples, corpus.label_names, corpus.digests, corpus.task)


def score_task(config: LinearProbe, vectors: Vectors, corpus: Corpus) -> TaskScore:
    """Score one vector per text on dev and test; fitting and choosing use train and dev only. Vectors whose
    cosines are all equal, as those of a prompt's last token before the first block, score 0.

    Raises:
        InputError: `f1` is used with more than two classes.
    """
    if corpus.task == "similarity":
        try:
            metrics = score_pairs(SimilarityConfig(), vectors, corpus).metrics
        except EqualCosinesError:
            return TaskScore("Spearman", 0.0, 0.0)
        return TaskScore("Spearman", metrics["dev_spearman"], metrics["test_spearman"])
    data = _data(corpus)
    examples = {split: data.split(split) for split in ("train", "dev", "test")}
    rows = {
        split: inputs([vectors[side] for side in of_split.sides], config.pair_features)
        for split, of_split in examples.items()
    }
    mean, std = rows["train"].mean(axis=0), rows["train"].std(axis=0)
    # A constant column carries no information, nor does one that is rounding alone.
    sides = [vectors[side] for side in examples["train"].sides]
    says_nothing = np.tile(is_rounding(sides), len(std) // vectors.shape[1]) | (std == 0)
    scale = np.where(says_nothing, 1.0, std)
    standard = {split: (of_split - mean) / scale for split, of_split in rows.items()}

    def score(model: Any, split: str) -> float:
        guesses = np.asarray(model.predict(standard[split]))
        return evaluate(config.metric, examples[split].labels, guesses)

    chosen = best_regression(
        standard["train"], examples["train"].labels, config.c, lambda model: score(model, "dev")
    )
    return TaskScore(config.metric, chosen.dev, score(chosen.model, "test"))
