"""How often two equal methods are told apart at 0.05, by the number of test examples.

    python -m benchmarks.few_examples [--trials 1000]

Two kinds of scores are drawn: one for each query from a beta distribution, as nDCG has them, and right or
wrong answers of a coin. Beside our paired bootstrap stands a plain one, without what
`stages.metrics.few_examples` adds, and for the queries Student's paired t. A good test says 5%, or less where
so few examples cannot prove anything.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from permafrost.stages.metrics.bootstrap import paired_bootstrap

SIZES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 50, 300)
N_RESAMPLES = 400
Scores = NDArray[np.float64]


def ours(a: Scores, b: Scores, seed: int) -> float:
    """p of the product's test."""
    return paired_bootstrap("mean", np.zeros(len(a)), a, b, n_resamples=N_RESAMPLES, seed=seed).p


def plain(a: Scores, b: Scores, seed: int) -> float:
    """p of a paired bootstrap that counts resamples on either side of 0."""
    drawn = np.random.default_rng(seed).integers(0, len(a), (N_RESAMPLES, len(a)))
    means = (a - b)[drawn].mean(axis=1)
    tails = min((means <= 1e-12).sum(), (means >= -1e-12).sum())
    return min(1.0, 2 * float(1 + tails) / (1 + N_RESAMPLES))


def student(a: Scores, b: Scores, seed: int) -> float:
    """p of the paired t."""
    return float(stats.ttest_rel(a, b).pvalue)


def queries(rng: np.random.Generator, n: int) -> Scores:
    """`[2, n]`, one score for each query and method."""
    return rng.beta(2, 2, (2, n))


def coins(rng: np.random.Generator, n: int) -> Scores:
    """`[2, n]`, right (1) or wrong."""
    return rng.integers(0, 2, (2, n)).astype(np.float64)


TESTS: dict[str, tuple[Callable[[np.random.Generator, int], Scores], Callable[..., float]]] = {
    "queries, ours": (queries, ours),
    "queries, plain bootstrap": (queries, plain),
    "queries, Student's t": (queries, student),
    "answers, ours": (coins, ours),
    "answers, plain bootstrap": (coins, plain),
}


def told_apart(name: str, n: int, n_trials: int) -> float:
    """Share of trials with p below 0.05."""
    draw, test = TESTS[name]
    rng = np.random.default_rng(n)
    return float(np.mean([test(*draw(rng, n), seed) < 0.05 for seed in range(n_trials)]))


def main() -> None:
    """Print a row for each number of examples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    n_trials = parser.parse_args().trials
    table = Table("examples", *TESTS)
    with Progress() as progress:
        for n in progress.track(SIZES, description="told apart"):
            table.add_row(str(n), *(f"{told_apart(name, n, n_trials):.1%}" for name in TESTS))
    Console().print(table)


if __name__ == "__main__":
    main()
