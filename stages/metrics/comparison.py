"""What got better or worse between two sets of results, and whether the difference is beyond noise.

If both sides kept predictions of the same test examples, a paired bootstrap tests the difference
(`stages.metrics.bootstrap`): noise is then the choice of examples, and of seeds if there are several. Where
all answers of both are equal, as where one run reused the fits of the other, there is no difference.
If the predictions are of other examples, each side's are drawn for themselves. Without predictions Welch's
t-test compares the scores of the seeds: noise is then the training alone, and the test sets may differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    Difference,
    Estimate,
    difference,
    estimate,
    resample,
)
from permafrost.stages.metrics.example_scores import ROUNDED, ExampleScores
from permafrost.stages.metrics.few_examples import SeedAnswers, smallest_p_of_two_draws
from permafrost.stages.metrics.predictions import MEANS, answers_in, written_predictions
from permafrost.stages.metrics.records import Role
from permafrost.stages.metrics.resampling import METRICS, units
from permafrost.storage.errors import InputError

Verdict = Literal["better", "worse", "within noise", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = ("better", "worse", "within noise", "cannot tell")
Basis = Literal["examples", "other examples", "seeds", "none"]
"""What the test is over: shared test examples or those of each side (and seeds if there are several), seeds
alone, or nothing (too few predictions or seeds, or all seeds of each side alike)."""

_SAME_SCORE = 1e-9
_ROUNDING = 1e-12
"""Scores of seeds that differ by no more are equal."""


@dataclass(frozen=True)
class NamedAnswers:
    """Predictions on a test set, with texts identified by digest and examples sorted by it."""

    digests: tuple[tuple[str, ...], ...]
    """Digests of the texts, one tuple per side of the examples."""
    labels: NDArray[np.float64]
    predictions: NDArray[np.float64]
    classes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of the classes that labels and predictions are, by name; empty for other numbers."""

    def numbered_as(self, classes: Mapping[str, int]) -> "NamedAnswers":
        """The same with classes numbered so, and others behind them."""
        every = dict(classes)
        for name in self.classes:
            every.setdefault(name, max(every.values()) + 1)
        numbers = {number: every[name] for name, number in self.classes.items()}
        labels, predictions = (
            np.array([numbers[int(v)] for v in values], np.float64)
            for values in (self.labels, self.predictions)
        )
        order = _in_order([np.array(side) for side in self.digests], labels)
        sides = tuple(tuple(side[at] for at in order.tolist()) for side in self.digests)
        return NamedAnswers(sides, labels[order], predictions[order], every)

    def same_examples(self, other: object) -> bool:
        """Whether both answer the same texts with the same labels."""
        return (
            isinstance(other, NamedAnswers)
            and self.digests == other.digests
            and np.array_equal(self.labels, other.labels)
        )


def named_answers(folder: Path) -> NamedAnswers | None:
    """The test predictions in a folder of results; None if they were not kept, or do not name their texts.

    Raises:
        CorruptDataError: the file cannot be read, or lacks a column.
    """
    table = written_predictions(folder, "test")
    if table is None or "digest" not in table.column_names:
        return None
    answers = answers_in(table, folder)
    columns = [n for n in ("digest", "digest_b") if n in table.column_names]
    sides = [np.array(table.column(name).to_pylist()) for name in columns]
    order = _in_order(sides, answers.labels)
    classes: dict[str, int] = {}
    for of, numbers in (("label_name", answers.labels), ("prediction_name", answers.predictions)):
        if of in table.column_names:
            classes |= dict(zip(table.column(of).to_pylist(), map(int, numbers), strict=True))
    return NamedAnswers(
        tuple(tuple(side[order].tolist()) for side in sides),
        answers.labels[order],
        answers.predictions[order],
        classes,
    )


def _in_order(sides: Sequence[NDArray[Any]], labels: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.lexsort((labels, *reversed(sides)))


@dataclass(frozen=True)
class ScoredMethod:
    """One method on one task, all its seeds."""

    method: str
    task: str
    metric: str
    role: Role
    tests: tuple[float, ...]
    """Test scores by seed."""
    answers: tuple[NamedAnswers | ExampleScores | None, ...]
    """Predictions by seed; None if they were not kept."""

    @property
    def name(self) -> tuple[str, str]:
        """Task and method, by which the two sides are matched."""
        return self.task, self.method

    @property
    def n_examples(self) -> int | None:
        """Number of its test examples; None if no predictions were kept."""
        return next((len(x.labels) for x in self.answers if x is not None), None)


@dataclass(frozen=True)
class Change:
    """One method on one task, before and after."""

    method: str
    task: str
    metric: str
    role: Role
    a: float
    """Mean over seeds."""
    b: float
    n_seeds: tuple[int, int]
    difference: float
    """b minus a."""
    tested: Difference | None
    """Its interval and p-value; None if it could not be tested."""
    basis: Basis
    n_examples: int | None
    """Number of shared test examples; None if the test is over others."""
    n_of_each: tuple[int, int] | None
    """Number of test examples of each side, where they are others; otherwise None."""
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Every method that both sides scored on a task of the same name."""

    changes: tuple[Change, ...]
    only_a: tuple[tuple[str, str], ...]
    """Task and method."""
    only_b: tuple[tuple[str, str], ...]
    alpha: float

    def count(self, verdict: Verdict) -> int:
        """Number of changes with this verdict."""
        return sum(change.verdict == verdict for change in self.changes)

    @property
    def n_tests(self) -> int:
        """Number of tests; they are not corrected for multiple testing."""
        return sum(change.tested is not None for change in self.changes)


def compare(
    a: Sequence[ScoredMethod], b: Sequence[ScoredMethod], config: BootstrapConfig
) -> Comparison:
    """Compare b with a.

    Raises:
        InputError: they have nothing in common, or different metrics for the same method and task.
    """
    before, after = ({m.name: m for m in side} for side in (a, b))
    shared = [name for name in before if name in after]
    if not shared:
        raise InputError(
            f"the two have no method on a task in common: A has {_listed(before)}, B has {_listed(after)}; "
            "give two results with the same names of methods and tasks"
        )
    for task, method in shared:
        metrics = before[task, method].metric, after[task, method].metric
        if metrics[0] != metrics[1]:
            raise InputError(
                f"{method} on {task} was scored by {metrics[0]} in A and by {metrics[1]} in B, which cannot "
                "be compared; score both by the same metric"
            )
    return Comparison(
        changes=tuple(_change(before[name], after[name], config) for name in shared),
        only_a=tuple(name for name in before if name not in after),
        only_b=tuple(name for name in after if name not in before),
        alpha=config.alpha,
    )


def _change(a: ScoredMethod, b: ScoredMethod, config: BootstrapConfig) -> Change:
    difference, basis = _tested(a, b, config)
    n_of_each = a.n_examples or 0, b.n_examples or 0
    means = float(np.mean(a.tests)), float(np.mean(b.tests))
    return Change(
        method=a.method,
        task=a.task,
        metric=a.metric,
        role=a.role,
        a=means[0],
        b=means[1],
        n_seeds=(len(a.tests), len(b.tests)),
        difference=means[1] - means[0],
        tested=difference,
        basis=basis,
        n_examples=a.n_examples if basis == "examples" else None,
        n_of_each=n_of_each if basis == "other examples" else None,
        verdict=_verdict(means[1] - means[0], difference, config.alpha),
    )


def _tested(
    a: ScoredMethod, b: ScoredMethod, config: BootstrapConfig
) -> tuple[Difference | None, Basis]:
    """The test, and what it is over."""
    is_same = same_test_set(a, b)
    if is_same and (tested := _paired(a, b, config)):
        return tested, "examples"
    if is_same is False:
        # Scores of seeds say nothing of how much other examples change.
        tested = _unpaired(a, b, config)
        return tested, "none" if tested is None else "other examples"
    tested = _welch(a, b, config)
    return tested, "none" if tested is None else "seeds"


def _verdict(change: float, difference: Difference | None, alpha: float) -> Verdict:
    if difference is None:
        return "cannot tell"
    if difference.p >= alpha:
        return "within noise"
    return "better" if change > 0 else "worse"


def same_test_set(a: ScoredMethod, b: ScoredMethod) -> bool | None:
    """Whether both have answered the same test examples; None if the predictions of either are gone, or are
    of another kind."""
    first, other = (next((x for x in one.answers if x is not None), None) for one in (a, b))
    if first is None or other is None or type(first) is not type(other):
        return None
    if isinstance(first, NamedAnswers):
        other = _numbered_alike(other, first)
    return first.same_examples(other)


def _paired(a: ScoredMethod, b: ScoredMethod, config: BootstrapConfig) -> Difference | None:
    """Paired bootstrap; None without predictions of the same examples that reproduce the scores."""
    first = next(x for x in a.answers if x is not None)
    before, after = (_estimated(_numbered(side, first), config, config.seed) for side in (a, b))
    if before is None or after is None:
        return None
    return difference(after, before, config.level, config.seed)


def _unpaired(a: ScoredMethod, b: ScoredMethod, config: BootstrapConfig) -> Difference | None:
    """Bootstrap of two test sets, each drawn for itself; None without predictions that give the scores."""
    of_b = int(np.random.SeedSequence([config.seed, 1]).generate_state(1)[0])
    before, after = _estimated(a, config, config.seed), _estimated(b, config, of_b)
    if before is None or after is None:
        return None
    n_drawn = before.answers[0].n_drawn, after.answers[0].n_drawn
    # Answers to other examples are not the same answers, whatever they are.
    before, after = (replace(side, answers=()) for side in (before, after))
    found = difference(after, before, config.level, config.seed)
    return replace(found, p=max(found.p, smallest_p_of_two_draws(n_drawn)))


def _estimated(one: ScoredMethod, config: BootstrapConfig, seed: int) -> Estimate | None:
    answers = [x for x in one.answers if x is not None]
    if len(answers) < len(one.tests) or len(answers[0].labels) < 2:
        return None
    first, metric, near, together = answers[0], one.metric, _SAME_SCORE, None
    if isinstance(first, ExampleScores):
        metric, near = first.how, ROUNDED
    elif metric in MEANS:
        metric = "mean"
    elif metric not in METRICS:
        return None
    else:
        together = units(metric, first.digests[0])
    if together is not None and not together.any():
        return None
    if not all(x.same_examples(first) for x in answers[1:]):
        return None
    predictions_KN = np.stack([x.predictions for x in answers])
    itself, values_KB = resample(
        metric, first.labels, predictions_KN, config.n_resamples, seed, together
    )
    if np.abs(itself - one.tests).max() > near:
        return None
    seeds = SeedAnswers(predictions_KN, together)
    return estimate(metric, itself, values_KB, seeds, config.level)


def _numbered(one: ScoredMethod, first: NamedAnswers | ExampleScores) -> ScoredMethod:
    """The same with the classes of all answers numbered as in the first."""
    if not isinstance(first, NamedAnswers):
        return one
    alike = tuple(None if x is None else _numbered_alike(x, first) for x in one.answers)
    return replace(one, answers=alike)


def _numbered_alike(
    x: NamedAnswers | ExampleScores, first: NamedAnswers
) -> NamedAnswers | ExampleScores:
    """Classes are numbered over all splits, so that another one in train moves the numbers of all."""
    if not isinstance(x, NamedAnswers) or not (x.classes and first.classes):
        return x
    return x if x.classes == first.classes else x.numbered_as(first.classes)


def _welch(a: ScoredMethod, b: ScoredMethod, config: BootstrapConfig) -> Difference | None:
    """Welch's t-test over seeds, with the degrees of freedom of Welch and Satterthwaite.

    None if a side has only one seed, or all seeds of each side have equal scores but for rounding.
    """
    from scipy.special import stdtr, stdtrit

    if min(len(a.tests), len(b.tests)) < 2 or max(map(np.ptp, (a.tests, b.tests))) <= _ROUNDING:
        return None
    n = np.array([len(a.tests), len(b.tests)])
    errors = np.array([np.var(a.tests, ddof=1), np.var(b.tests, ddof=1)]) / n
    freedom = errors.sum() ** 2 / (errors**2 / (n - 1)).sum()
    value, error = float(np.mean(b.tests) - np.mean(a.tests)), float(np.sqrt(errors.sum()))
    reach = error * float(stdtrit(freedom, (1 + config.level) / 2))
    p = 2 * float(stdtr(freedom, -abs(value) / error))
    return Difference(value, value - reach, value + reach, p)


def _listed(side: Mapping[tuple[str, str], ScoredMethod]) -> str:
    names = [f"{method} on {task}" for task, method in side]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
