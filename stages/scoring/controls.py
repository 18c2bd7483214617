"""Controls: baselines without a backbone. A task that they solve can be solved from its surface.

Both are logistic regressions on counts from the text; on a task whose signal is relational they must stay at
chance.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import overlap_metrics
from permafrost.stages.fit.logistic import best_regression
from permafrost.stages.fit.metrics import class_balance, evaluate, evaluate_part, majority_rate
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import Scores, predictions_table
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

SPLITS = ("train", "dev", "test")

ClassMetric = Literal["accuracy", "mcc", "f1"]


class _Control(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: ClassMetric = "accuracy"
    """Compared on dev and reported; in an experiment the default is the task's own metric."""


class LengthControl(_Control):
    """Sees the number of words and of characters only."""

    kind: Literal["length"] = "length"
    c: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        default=(1.0,), min_length=1
    )
    """Inverse regularisation strengths, chosen on dev."""


class BagOfWordsControl(_Control):
    """Sees how often each word of the training texts occurs, but not where."""

    kind: Literal["bag_of_words"] = "bag_of_words"
    case: Literal["folded", "kept"] = "folded"
    """Whether words that differ in upper and lower case alone are one (`folded`, as an uncased backbone reads
    them) or two (`kept`, the control for a backbone that sees their case)."""
    c: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        default=(0.01, 0.1, 1.0, 10.0), min_length=1
    )
    """Inverse regularisation strengths, chosen on dev; the smallest of equally good ones is kept."""


ControlConfig = Annotated[LengthControl | BagOfWordsControl, Field(discriminator="kind")]


def run_control(config: ControlConfig, corpus: Corpus) -> Scores:
    """Fit on train, choose on dev, report dev and test.

    The features of pairs are the concatenated counts of both texts.

    Returns:
        metric, dev, test, n_dev, n_test, majority, class_balance, choice, n_parameters, converged; overlap,
        n_clean_test and clean_test (see `overlap_metrics`). With two classes, the score of a prediction is
        the probability of class 1.

    Raises:
        InputError: the task has no classes, or train, dev or test is missing.
    """
    require_control(config, corpus)
    labels = _labels(corpus)
    features = (
        _length(corpus) if isinstance(config, LengthControl) else _counts(corpus, config.case)
    )
    model, chosen, best, converged = best_regression(
        features["train"],
        labels["train"],
        config.c,
        lambda model: evaluate(config.metric, labels["dev"], model.predict(features["dev"])),
    )
    answers = np.asarray(model.predict(features["test"]))
    metrics = {
        "metric": config.metric,
        "dev": best,
        "test": evaluate(config.metric, labels["test"], answers),
        "n_dev": len(labels["dev"]),
        "n_test": len(labels["test"]),
        "majority": majority_rate(labels["test"]),
        "class_balance": class_balance(labels["test"], corpus.label_names),
        **_overlap(config.metric, corpus, answers, labels["test"]),
        "choice": {"c": chosen, "n_features": int(model.n_features_in_)},
        "n_parameters": int(model.coef_.size + model.intercept_.size),
        "converged": converged,
    }
    is_binary = len(corpus.label_names) == 2
    tables: list[pa.Table] = []
    probabilities: list[NDArray[np.float64]] = []
    for split in ("dev", "test"):
        rows = corpus.split(split)
        sides = [rows.column(side).to_numpy() for side in _sides(corpus)]
        # Classes that train does not have keep 0.
        shares = np.zeros((rows.num_rows, len(corpus.label_names)))
        shares[:, model.classes_] = model.predict_proba(features[split])
        probabilities.append(shares)
        guesses = model.predict(features[split])
        score = shares[:, 1] if is_binary else None
        tables.append(predictions_table(split, sides, labels[split], guesses, score))
    table = identified(
        pa.concat_tables(tables),
        corpus.examples,
        corpus.digests,
        corpus.label_names,
        np.concatenate(probabilities),
    )
    return Scores(metrics, table)


def require_control(config: ControlConfig, corpus: Corpus) -> None:
    """Check everything about a control before it is fitted.

    Raises:
        InputError: see `run_control`.
    """
    _labels(corpus)
    if config.metric == "f1" and len(corpus.label_names) != 2:
        raise InputError(
            f"metric f1 is that of class 1 of two, but the corpus has {len(corpus.label_names)} classes; "
            "use accuracy or mcc"
        )


def _overlap(
    metric: ClassMetric,
    corpus: Corpus,
    guesses: Int[np.ndarray, " n"],
    labels: Int[np.ndarray, " n"],
) -> dict[str, float | int | None]:
    rows = corpus.split("test")
    sides = [rows.column(side).to_numpy() for side in _sides(corpus)]
    return overlap_metrics(
        corpus.examples,
        sides,
        lambda clean: evaluate_part(metric, labels[clean], guesses[clean]),
    )


def _labels(corpus: Corpus) -> dict[str, Int[np.ndarray, " n"]]:
    if not corpus.label_names:
        raise InputError(
            f"a control needs classes, but the task is {quoted(corpus.task)}; leave the control out for "
            "this task"
        )
    missing = [split for split in SPLITS if split not in corpus.splits]
    if missing:
        raise InputError(
            f"a control needs the splits {', '.join(SPLITS)}, but the corpus has "
            f"{', '.join(corpus.splits)}. {advice_on_splits(missing)}"
        )
    labels = {s: corpus.split(s).column("label").to_numpy().astype(np.int64) for s in SPLITS}
    if len(np.unique(labels["train"])) < 2:
        only = corpus.label_names[labels["train"][0]]
        raise InputError(
            f"all {len(labels['train'])} training examples have the class {quoted(only)}; nothing can be "
            "fitted, so give examples of another class"
        )
    return labels


def _sides(corpus: Corpus) -> tuple[str, ...]:
    return ("text", "text_pair") if corpus.task == "pair_classification" else ("text",)


def _texts(corpus: Corpus, split: str, side: str) -> Sequence[str]:
    return [corpus.texts[int(i)] for i in corpus.split(split).column(side).to_pylist()]


def _length(corpus: Corpus) -> dict[str, Float[np.ndarray, "n f"]]:
    """Counts of words and characters, standardised on train; `[n_examples, 2]` (pairs: 4) float64."""
    counts = {
        split: np.hstack(
            [
                np.array([(len(t.split()), len(t)) for t in _texts(corpus, split, s)], np.float64)
                for s in _sides(corpus)
            ]
        )
        for split in SPLITS
    }
    mean, std = counts["train"].mean(0), counts["train"].std(0)
    # A constant count carries no information; dividing by 1 keeps it finite.
    scale = np.where(std > 0, std, 1.0)
    return {split: (count - mean) / scale for split, count in counts.items()}


def _counts(corpus: Corpus, case: Literal["folded", "kept"]) -> dict[str, Any]:
    """Word counts, sparse `[n_examples, n_words]` (pairs: twice the words); words of train only."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer

    # Every run of non-space characters is a word, single letters and signs included.
    vectorizer = CountVectorizer(token_pattern=r"\S+", lowercase=case == "folded")
    vectorizer.fit([t for s in _sides(corpus) for t in _texts(corpus, "train", s)])
    return {
        split: hstack(
            [vectorizer.transform(_texts(corpus, split, s)) for s in _sides(corpus)], format="csr"
        )
        for split in SPLITS
    }
