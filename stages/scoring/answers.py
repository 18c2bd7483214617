"""The metrics and predictions recorded for a method on the dev and test examples of a corpus.

Beside the score on test there is one on its clean part: the examples with no text that occurs in train, as a
first or as a second one (249 of the 1,379 test pairs of STS-B are not clean).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from permafrost.stages.corpus.overlap import overlap_metrics
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.metrics import (
    METRICS,
    Metric,
    class_balance,
    evaluate,
    evaluate_part,
    majority_rate,
)
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import predictions_table

SPLITS = ("dev", "test")
"""The scored splits."""

Answered = Mapping[str, tuple[Examples, Predictions]]
"""Examples and answers of `SPLITS`."""


def answers_table(data: FitData, answered: Answered) -> pa.Table:
    """The answers on a corpus, one row per example; see `predictions_table` and `identified`."""
    table = pa.concat_tables(
        predictions_table(s.split, s.sides, s.labels, p.values, p.scores)
        for s, p in answered.values()
    )
    parts = [p.probabilities for _, p in answered.values() if p.probabilities is not None]
    return identified(
        table,
        data.examples,
        data.digests,
        data.label_names,
        np.concatenate(parts) if parts else None,
    )


def answer_metrics(metric: Metric, data: FitData, answered: Answered) -> dict[str, Any]:
    """The metrics of answers, by name.

    Args:
        metric: the main metric.
        data: the corpus.
        answered: the answers.

    Returns:
        metric, dev, test, n_dev, n_test; majority and class_balance of test, None if labels are not
        classes; overlap, n_clean_test and clean_test (see `overlap_metrics`); `{dev,test}_{metric}` for
        every metric of the task.
    """
    test, answers = answered["test"]

    def measure(clean: NDArray[np.bool_]) -> float | None:
        return evaluate_part(metric, test.labels[clean], answers.values[clean])

    return {
        "metric": metric,
        **{n: evaluate(metric, s.labels, p.values) for n, (s, p) in answered.items()},
        **{f"n_{n}": len(s) for n, (s, _) in answered.items()},
        "majority": majority_rate(test.labels) if data.label_names else None,
        "class_balance": class_balance(test.labels, data.label_names) if data.label_names else None,
        **overlap_metrics(data.examples, test.sides, measure),
        **{
            f"{n}_{other}": evaluate(other, s.labels, p.values)
            for n, (s, p) in answered.items()
            for other in METRICS[data.task]
            if other != "f1" or len(data.label_names) == 2
        },
    }
