"""Logistic regression: fitted on train, its regularisation strength chosen on dev."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jaxtyping import Int
from numpy import ndarray

MAX_ITER = 5000


class Chosen(NamedTuple):
    """The regression chosen on dev."""

    model: Any
    """A `LogisticRegression` of scikit-learn, which has few type annotations."""
    c: float
    """Inverse regularisation strength."""
    dev: float
    """Its score on dev."""
    converged: bool
    """Whether its solver needed fewer steps than it may take."""


@contextmanager
def told_by_result() -> Iterator[None]:
    """Without scikit-learn's warnings that a solver did not converge: results say so."""
    # Imported here: it takes a second, which `plan` and a run of cached stages should not pay.
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def logistic_regression(
    rows: Any, labels: Int[ndarray, " n"], c: float, max_iter: int = MAX_ITER
) -> Any:
    """Fit scikit-learn's (multinomial) `LogisticRegression` with an L2 penalty by L-BFGS; deterministic.

    Where it does not converge, its `n_iter_` is `max_iter`.

    Args:
        rows: `[n, f]`, dense or sparse.
        labels: class indices.
        c: inverse regularisation strength.
        max_iter: maximum iterations of the solver.
    """
    # Imported here: it takes a second, which `plan` and a run of cached stages should not pay.
    from sklearn.linear_model import LogisticRegression

    with told_by_result():
        return LogisticRegression(C=c, max_iter=max_iter).fit(rows, labels)


def best_regression(
    rows: Any,
    labels: Int[ndarray, " n"],
    strengths: Sequence[float],
    dev: Callable[[Any], float],
) -> Chosen:
    """The regression that scores best on dev; of equal ones the one with the smallest c."""
    fitted: list[Chosen] = []
    for c in sorted(strengths):
        model = logistic_regression(rows, labels, c, MAX_ITER)
        fitted.append(Chosen(model, c, dev(model), int(max(model.n_iter_)) < MAX_ITER))
    return max(fitted, key=lambda chosen: chosen.dev)
