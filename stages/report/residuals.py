"""What a method predicts against the grades, on one scale; and whether the clean part of test is easier.

Source: FREEZE!, appendix 10, lists pairs by the absolute difference of prediction and grade, and has in a
draft the mean and deviation of the differences, and that a text with itself is not predicted as 1. Appendix
11 is empty; its code scored another model on the 1,130 clean pairs and on 500 random parts of that size.
Here both are asked of any method on graded pairs that the experiment names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64
from numpy.typing import NDArray

from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.stages.metrics.predictions import Answers, read_answers
from permafrost.stages.metrics.records import METRICS
from permafrost.stages.report.cells import CellResult, TaskCorpus
from permafrost.stages.report.config import Residuals
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.markup import PlainTable
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

N_PARTS = 500
_SEED = 0
_CORRELATIONS = {"pearson": pearson, "spearman": spearman}
_LEAST = 3
"""Fewer pairs have no correlation to speak of."""
_LEAST_SPAN = 0.25
"""Share of the default `labels` that the grades of test span at least: 0 to 1 is another scale."""


@dataclass(frozen=True)
class WorstPair:
    """One pair, its grade, and the prediction in the grade's units."""

    texts: tuple[str, ...]
    label: float
    prediction: float


@dataclass(frozen=True)
class RandomParts:
    """The score on the clean part of test, and on parts of its size drawn without replacement."""

    n_clean: int
    clean: float
    mean: float
    deviation: float
    """Over the parts."""
    below: float
    """Share of the parts with a lower score than the clean one."""


@dataclass(frozen=True)
class MethodResiduals:
    """One method on one task of graded pairs; the smallest seed where several are not averaged."""

    method: str
    task: str
    metric: str
    n_test: int
    n_seeds: int
    mean: float
    """Of prediction minus grade, in units of the grades, over pairs and then seeds."""
    deviation: float
    """Of the same over the pairs (divided by n), mean over seeds."""
    of_itself: float | None
    """The prediction for a text and itself, mean over seeds; None where the method does not say."""
    worst: tuple[WorstPair, ...]
    """By the absolute difference, of the smallest seed."""
    parts: RandomParts | None
    """Of the smallest seed; None where test shares no text with train."""


def residuals(
    configs: Sequence[Residuals],
    results: Sequence[CellResult],
    corpora: Mapping[str, TaskCorpus],
    n_worst: int,
) -> tuple[MethodResiduals, ...]:
    """The named methods on every task with graded pairs whose predictions were kept.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    found: list[MethodResiduals] = []
    for config in configs:
        of_tasks: dict[str, list[CellResult]] = {}
        for r in results:
            known = corpora.get(r.cell.task)
            is_named = not config.tasks or r.cell.task in config.tasks
            is_graded = known is not None and known.task == "similarity"
            if r.cell.method == config.method and is_named and is_graded:
                of_tasks.setdefault(r.cell.task, []).append(r)
        for task, of_task in of_tasks.items():
            one = _of_task(config, of_task, corpora[task], n_worst)
            if one is not None:
                found.append(one)
    return tuple(found)


def _of_task(
    config: Residuals, results: Sequence[CellResult], corpus: TaskCorpus, n_worst: int
) -> MethodResiduals | None:
    ordered = sorted(results, key=lambda r: r.cell.seed)
    answered = [
        (r, a) for r in ordered if (a := read_answers(r.cell.folder)) is not None and len(a)
    ]
    if not answered:
        return None
    differences = [scaled(config, a.predictions) - a.labels for _, a in answered]
    itself = [v for r, _ in answered if (v := _self_similarity(r)) is not None]
    first, answers = answered[0]
    return MethodResiduals(
        method=config.method,
        task=first.cell.task,
        metric=first.metrics.metric,
        n_test=len(answers),
        n_seeds=len(answered),
        mean=float(np.mean([d.mean() for d in differences])),
        deviation=float(np.mean([d.std() for d in differences])),
        of_itself=float(scaled(config, np.array(itself)).mean()) if itself else None,
        worst=_worst(answers, differences[0], corpus, n_worst),
        parts=random_parts(answers, first.metrics.metric, corpus),
    )


def require_scale(
    config: Residuals, labels: Float64[np.ndarray, " n"], field: str, task: str
) -> None:
    """Check that the test grades of a task are of the scale that predictions are brought to.

    Args:
        config: of the method.
        labels: the grades.
        field: where `config` stands in the experiment.
        task: its name.

    Raises:
        InputError: a grade lies outside the scale, or all of them in a small part of the default one.
    """
    least, most = config.labels
    low, high = float(labels.min()), float(labels.max())
    # A scale that is given may be wider than what these pairs were graded.
    is_given = "labels" in config.model_fields_set
    is_narrow = not is_given and high - low < _LEAST_SPAN * (most - least)
    if low < least or high > most or is_narrow:
        raise InputError(
            f"{field}.labels is {least:g} to {most:g}, but the test grades of {quoted(task)} go from {low:g} "
            f"to {high:g}, so differences from predictions mean nothing; give the lowest and the highest "
            "grade that their scale has, whether or not a pair has it (of several scales, an entry for each "
            "with its 'tasks')"
        )


def scaled(config: Residuals, predictions: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Predictions in the units of the grades."""
    (low, high), (least, most) = config.predictions, config.labels
    return least + (predictions - low) / (high - low) * (most - least)


def _self_similarity(result: CellResult) -> float | None:
    content: Any = read_json(result.cell.folder / METRICS)
    return content.get("self_similarity")


def _worst(
    answers: Answers, differences: Float64[np.ndarray, " n"], corpus: TaskCorpus, n: int
) -> tuple[WorstPair, ...]:
    order = np.argsort(-np.abs(differences), kind="stable")[:n].tolist()
    return tuple(
        WorstPair(
            tuple(corpus.texts[int(side[row])] for side in answers.sides),
            float(answers.labels[row]),
            float(answers.labels[row] + differences[row]),
        )
        for row in order
    )


def random_parts(answers: Answers, metric: str, corpus: TaskCorpus) -> RandomParts | None:
    """`N_PARTS` parts of the clean part's size, drawn from all of test with one seed, so that every method is
    scored on the same ones."""
    correlate = _CORRELATIONS.get(metric)
    clean = ~np.isin(np.stack(answers.sides), _train_texts(corpus.examples)).any(axis=0)
    n, n_clean = len(answers), int(clean.sum())
    if correlate is None or not _LEAST <= n_clean < n:
        return None

    def score(rows: np.ndarray) -> float:
        return correlate(answers.predictions[rows], answers.labels[rows])

    rng = np.random.default_rng(_SEED)
    scores = np.array([score(rng.permutation(n)[:n_clean]) for _ in range(N_PARTS)])
    on_clean = score(np.flatnonzero(clean))
    return RandomParts(
        n_clean,
        on_clean,
        float(scores.mean()),
        float(scores.std()),
        float((scores < on_clean).mean()),
    )


def _train_texts(examples: pa.Table) -> NDArray[np.int64]:
    """First and second texts of train; graded pairs have no others."""
    train = examples.filter(pc.equal(examples.column("split"), "train"))
    return np.concatenate([train.column(c).to_numpy() for c in ("text", "text_pair")])


def residual_tables(found: Sequence[MethodResiduals]) -> tuple[PlainTable, ...]:
    """Differences, the worst pairs of each, and the clean part against random parts."""
    if not found:
        return ()
    differences = PlainTable(
        "Prediction less grade, in units of the grades",
        ("task", "method", "mean", "deviation", "text with itself", "test pairs", "seeds"),
        tuple(
            (
                r.task,
                r.method,
                _number(r.mean),
                f"{r.deviation:.2f}",
                DASH if r.of_itself is None else _number(r.of_itself),
                f"{r.n_test:,}",
                str(r.n_seeds),
            )
            for r in found
        ),
    )
    worst = [
        PlainTable(
            f"{r.task}, {r.method}: pairs by the absolute difference of prediction and grade",
            ("first text", "second text", "grade", "prediction", "difference"),
            tuple(
                (*p.texts, _number(p.label), _number(p.prediction), _number(p.prediction - p.label))
                for p in r.worst
            ),
        )
        for r in found
    ]
    parts = PlainTable(
        f"Is the clean part of test easier? × 100, against {N_PARTS} random parts of its size",
        ("task", "method", "clean", "random parts", "deviation", "share below", "pairs"),
        tuple(
            (
                r.task,
                r.method,
                hundredths(r.parts.clean),
                hundredths(r.parts.mean),
                hundredths(r.parts.deviation),
                f"{r.parts.below:.1%}",
                f"{r.parts.n_clean:,}",
            )
            for r in found
            if r.parts is not None
        ),
    )
    return tuple(t for t in (differences, *worst, parts) if t.rows)


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
