"""The result of a probe: values along one axis, and the position that dev would choose."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.metrics.records import POINTS

Unit = Literal["share", "number"]
"""A share is shown in percent, a number as it is."""


@dataclass(frozen=True)
class Point:
    """One value of a measure."""

    measure: str
    """What was measured."""
    unit: Unit
    x: float
    """Position on the axis."""
    at: str
    """Name of that position: a layer (`final`, after the final norm, comes one after the last block) or a
    threshold."""
    value: float
    chosen: bool = False
    """Whether this position was chosen on dev."""


@dataclass(frozen=True)
class ProbeCurves:
    """The results of one probe on one task."""

    axis: str
    """Name of the axis."""
    points: tuple[Point, ...]

    @property
    def choice(self) -> dict[str, str | float]:
        """The position chosen on dev, with the measures there; empty if nothing is chosen."""
        chosen = [p for p in self.points if p.chosen]
        return {self.axis: chosen[0].at, **{p.measure: p.value for p in chosen}} if chosen else {}

    def save(self, folder: Path) -> None:
        """Write points.parquet."""
        rows = [{"axis": self.axis, **asdict(point)} for point in self.points]
        columns = {name: [row[name] for row in rows] for name in POINTS.names}
        pq.write_table(pa.table(columns, schema=POINTS), folder / "points.parquet")

    @classmethod
    def load(cls, folder: Path) -> "ProbeCurves":
        """Read what `save` wrote."""
        rows = pq.read_table(folder / "points.parquet").to_pylist()
        axes = [row.pop("axis") for row in rows]
        return cls(axes[0], tuple(Point(**row) for row in rows))


def first_best(scores: Sequence[float]) -> int:
    """Index of the highest score, the first of equal ones."""
    return max(range(len(scores)), key=lambda i: (scores[i], -i))
