"""What each example of an evaluation's test set adds to its score: what resampling needs of it."""

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

How = Literal["mean", "spearman", "pearson"]
"""How the score is made of the predictions: their mean, or a correlation with the labels."""

ROUNDED = 6e-6
"""mteb rounds some of its scores to five decimals."""


@dataclass(frozen=True)
class ExampleScores:
    """Predictions of one method on the examples of a task, in the task's order."""

    names: tuple[str, ...]
    """What tells examples apart: digests of texts; of queries the id as well."""
    labels: Float64[np.ndarray, " n"]
    """Grades; where the score is a mean, whatever else must be equal for two methods to be compared."""
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
    """The scores in a folder of results; None where none were kept.

    Raises:
        CorruptDataError: the file cannot be read, or is something else.
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
            f"{path} says that its score is a {quoted(how)}, expected one of {', '.join(get_args(How))}; "
            f"delete the artifact and evaluate it again"
        )
    return ExampleScores(names, labels, predictions, how)  # pyright: ignore[reportArgumentType] # checked
