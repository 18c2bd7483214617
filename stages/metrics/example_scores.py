"""The contribution of each test example of an evaluation to its score, for resampling."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.quoting import quoted

EXAMPLE_SCORES = "example_scores.parquet"

How = Literal["mean", "spearman", "pearson", "average_precision"]
"""How the score is computed from the predictions: their mean, a correlation with the labels, or the average
precision with which they rank examples of label 1 first."""

ROUNDED = 6e-6
"""mteb rounds some of its scores to five decimals."""


@dataclass(frozen=True)
class ExampleScores:
    """Predictions of one method on the examples of a task, in the task's order."""

    names: tuple[str, ...]
    """Identifies each example: digests of its texts; for a query its id as well."""
    labels: Float64[np.ndarray, " n"]
    """Grades or classes; if the score is a mean, whatever else must be equal for two methods to be
    comparable."""
    predictions: Float64[np.ndarray, " n"]
    how: How

    def __len__(self) -> int:
        return len(self.names)

    def same_examples(self, other: object) -> bool:
        """Whether both are scores of the same kind on the same examples."""
        return (
            isinstance(other, ExampleScores)
            and (self.names, self.how) == (other.names, other.how)
            and np.array_equal(self.labels, other.labels)
        )

    def save(self, folder: Path) -> None:
        """Write example_scores.parquet."""
        table = pa.table(
            {
                "example": pa.array(self.names, pa.string()),
                "label": pa.array(self.labels, pa.float64()),
                "prediction": pa.array(self.predictions, pa.float64()),
            }
        )
        pq.write_table(table.replace_schema_metadata({"score": self.how}), folder / EXAMPLE_SCORES)


def read_example_scores(folder: Path) -> ExampleScores | None:
    """The scores in a folder of results; None if they were not kept.

    Raises:
        CorruptDataError: the file cannot be read, or has another content.
    """
    path = folder / EXAMPLE_SCORES
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
        how = (table.schema.metadata or {})[b"score"].decode()
        labels, predictions = (
            table.column(name).to_numpy().astype(np.float64) for name in ("label", "prediction")
        )
        names = tuple(table.column("example").to_pylist())
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptDataError(
            f"{path} holds no scores of examples ({error}); delete the artifact and evaluate it again"
        ) from error
    if how not in get_args(How):
        raise CorruptDataError(
            f"{path} declares its score as {quoted(how)}, expected one of {', '.join(get_args(How))}; "
            f"delete the artifact and evaluate it again"
        )
    return ExampleScores(names, labels, predictions, how)  # pyright: ignore[reportArgumentType] # checked
