"""Logistic regression: fitted on train, its regularisation strength chosen on dev."""

from collections.abc import Callable, Sequence
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


def logistic_regression(
    rows: Any, labels: Int[ndarray, " n"], c: float, max_iter: int = MAX_ITER
) -> Any:
    """Fit scikit-learn's (multinomial) `LogisticRegression` with an L2 penalty by L-BFGS; deterministic.

    Warns, as scikit-learn does, if it does not converge.

    Args:
        rows: `[n, f]`, dense or sparse.
        labels: class indices.
        c: inverse regularisation strength.
        max_iter: maximum iterations of the solver.
    """
    # Imported here: it takes a second, which `plan` and a run of cached stages should not pay.
    from sklearn.linear_model import LogisticRegression

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
        model = logistic_regression(rows, labels, c)
        fitted.append(Chosen(model, c, dev(model)))
    return max(fitted, key=lambda chosen: chosen.dev)
