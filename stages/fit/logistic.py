"""The one logistic regression: fitted on train, its strength of regularisation chosen on dev."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Int
from numpy import ndarray

MAX_ITER = 5000


class Chosen(NamedTuple):
    """The regression that dev chose."""

    model: Any
    """A `LogisticRegression` of scikit-learn, which types little of it."""
    c: float
    dev: float


def logistic_regression(
    rows: Any, labels: Int[ndarray, " n"], c: float, max_iter: int = MAX_ITER
) -> Any:
    """A (multinomial) `LogisticRegression` of scikit-learn with an L2 penalty, by L-BFGS; nothing is drawn.

    Warns, as scikit-learn does, where it does not converge.

    Args:
        rows: `[n, f]`, dense or sparse.
        labels: class indices.
        c: inverse strength of the regularisation.
        max_iter: steps of the solver, at most.
    """
    # Imported here: scikit-learn takes a second, which `plan` and a run of cached stages should not pay.
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, max_iter=max_iter).fit(rows, labels)


def best_regression(
    rows: Any,
    labels: Int[ndarray, " n"],
    strengths: Sequence[float],
    dev: Callable[[Any], float],
) -> Chosen:
    """The regression that scores best on dev; of equal ones that with the smallest c."""
    found: list[Chosen] = []
    for c in sorted(strengths):
        model = logistic_regression(rows, labels, c)
        found.append(Chosen(model, c, dev(model)))
    return max(found, key=lambda chosen: chosen.dev)
