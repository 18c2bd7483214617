"""The input of a report: cells of the grid (method x task x seed), their metrics, and the tasks' texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa
from pydantic import ValidationError

from permafrost.stages.metrics.records import METRICS, Metrics, Role
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, PermafrostError


@dataclass(frozen=True)
class Costs:
    """What a cell cost, as far as it was recorded when its artifacts were computed."""

    fit_seconds: float | None = None
    """Wall time of the fit, including its whole grid; if nothing is trained, of computing the vectors."""
    score_seconds: float | None = None
    n_pooling_parameters: int | None = None
    """Number of parameters in the pooling; all others belong to the task."""


Part = Literal["tasks", "evaluations"]
"""Where an experiment names a task: among those on which methods are trained, or in an evaluation."""


@dataclass(frozen=True)
class Cell:
    """One method on one task with one seed, and where its results are."""

    method: str
    task: str
    seed: int
    role: Role
    folder: Path
    """Contains metrics.json, predictions.parquet and, for some, token_weights.parquet and map.parquet."""
    history: Path | None
    """history.parquet of the fit; None if nothing is trained in epochs."""
    key: str
    """Artifact key of the results."""
    loss: str | None = None
    """The loss that training minimised; None if nothing is trained in epochs."""
    costs: Costs = Costs()
    category: str | None = None
    """Kind of the task, for averages over tasks of one kind."""
    part: Part = "tasks"
    """Where the experiment names the task."""
    must_be_at_chance: bool = True
    """Of a control: whether it gets nothing from which the answer can be learnt."""
    fit: str | None = None
    """Artifact key of the fit behind it, which cells of several tasks may share; None if it is not known."""
    tunes_backbone: bool = False
    """Whether the backbone that it reads was trained."""
    is_random: bool = True
    """Whether another seed would give another result."""

    @property
    def label(self) -> str:
        """Name of the cell, for messages."""
        return f"{self.method} · {self.task} · seed {self.seed}"


@dataclass(frozen=True)
class CellResult:
    """A cell and its metrics."""

    cell: Cell
    metrics: Metrics


@runtime_checkable
class TaskCorpus(Protocol):
    """What a report reads from a task's corpus."""

    @property
    def texts(self) -> Sequence[str]: ...
    @property
    def examples(self) -> pa.Table: ...
    @property
    def task(self) -> str: ...
    @property
    def label_names(self) -> tuple[str, ...]: ...


def read_results(cells: Sequence[Cell]) -> tuple[CellResult, ...]:
    """Read the metrics of all cells, in their order.

    Raises:
        InputError: there are no cells, one occurs twice, one has no test score, or the cells of a task
            were scored on different test sets.
        NotFoundError: a folder has no metrics.json.
        CorruptDataError: a metrics.json has wrong or missing fields.
        PermafrostError: a metric is not a finite number.
    """
    if not cells:
        raise InputError("a report of 0 cells: give it at least one result (a method on a task)")
    results = tuple(CellResult(cell, _read_metrics(cell)) for cell in cells)
    seen: dict[tuple[str, str, int], Cell] = {}
    sizes: dict[str, CellResult] = {}
    for result in results:
        cell = result.cell
        if (other := seen.get((cell.method, cell.task, cell.seed))) is not None:
            raise InputError(
                f"the cell {cell.label} is given twice ({other.key} and {cell.key}); "
                "name one of the methods differently or leave one out"
            )
        seen[cell.method, cell.task, cell.seed] = cell
        first = sizes.setdefault(cell.task, result)
        if first.metrics.n_test != result.metrics.n_test:
            raise InputError(
                f"{first.cell.label} was scored on {first.metrics.n_test} test examples and {cell.label} "
                f"on {result.metrics.n_test}; one column cannot compare them, so score both on one corpus"
            )
    return results


def _read_metrics(cell: Cell) -> Metrics:
    path = cell.folder / METRICS
    try:
        content = read_json(path)
        if isinstance(content, dict) and content.get("test", 0.0) is None:
            raise InputError(
                f"{cell.label} was scored on a corpus without a test split ({path}), so a report has nothing "
                "to show of it; call one of the corpus' splits test"
            )
        metrics = Metrics.model_validate(content)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the results of {cell.label} have no metrics.json in {cell.folder}; "
            "run the experiment again to score it"
        ) from error
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, e["loc"])) or "the file" for e in error.errors())
        raise CorruptDataError(
            f"{path} ({cell.label}) has wrong or missing fields: {fields}; score it again"
        ) from error
    shares = ("majority", "guess", "overlap", "test_in_dev", "dev_in_train")
    for name in ("dev", "test", *shares, "clean_test"):
        value = getattr(metrics, name)
        if value is not None and not math.isfinite(value):
            raise PermafrostError(
                f"{name} {metrics.metric} of {cell.label} is {value} in {path}; a mean over seeds would hide "
                "that, so find out why the scorer gave it, or leave this method out of the experiment"
            )
    return metrics


def label_text(value: float, corpus: TaskCorpus) -> str:
    """The name of a class, or a grade with three significant digits."""
    names = corpus.label_names
    if value.is_integer() and 0 <= value < len(names):
        return names[int(value)]
    return f"{value:.3g}"
