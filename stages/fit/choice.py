"""Choosing among fits: the highest metric on dev wins, the first of equal ones."""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.fit.record import read_record
from permafrost.stages.metrics.records import CANDIDATE_EPOCHS, HISTORY

STAGE = "choose"
"""Stage of artifacts that hold a choice."""


@dataclass(frozen=True)
class Choice:
    """The trained head that was chosen, and how all were trained."""

    fits: tuple[Path, ...]
    """Folders of the fits, in the order of the candidates."""
    candidate: int
    """Which of them was chosen, from 0."""
    dev_metric: float

    def save(self, folder: Path) -> None:
        """Write the same files as a fit: the chosen head, and the history and log of all candidates, with a
        column for the candidate."""
        chosen = self.fits[self.candidate]
        shutil.copyfile(chosen / "head.safetensors", folder / "head.safetensors")
        record = read_record(chosen) | {"candidate": self.candidate}
        (folder / "head.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        histories = [_numbered(fit, i) for i, fit in enumerate(self.fits)]
        pq.write_table(pa.concat_tables(histories), folder / HISTORY)
        (folder / "log.csv").write_text(self._log(), encoding="utf-8")

    def _log(self) -> str:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        for i, fit in enumerate(self.fits):
            with (fit / "log.csv").open(encoding="utf-8", newline="") as file:
                header, *rows = csv.reader(file)
            if i == 0:
                lines.writerow(["candidate", *header])
            lines.writerows([i, *row] for row in rows)
        return text.getvalue()


def choose(fits: Sequence[Path]) -> Choice:
    """Choose among the fits in these folders.

    Raises:
        NotFoundError: a folder holds no trained head.
        CorruptDataError: its record is damaged.
    """
    best, best_metric = 0, read_record(fits[0])["dev_metric"]
    for i, fit in enumerate(fits[1:], 1):
        if (metric := read_record(fit)["dev_metric"]) > best_metric:
            best, best_metric = i, metric
    return Choice(tuple(fits), best, best_metric)


def bar_after(fit: Path) -> float:
    """The dev metric that the next candidate of a grid with patience has to beat: the best of this fit and of
    those before it."""
    record: dict[str, Any] = read_record(fit)
    before = record["to_beat"]
    return record["dev_metric"] if before is None else max(record["dev_metric"], before)


def _numbered(fit: Path, number: int) -> pa.Table:
    """The history of a fit, with columns that identify the candidate."""
    table = pq.read_table(fit / HISTORY)
    config = json.dumps(read_record(fit)["chosen"])
    columns = {
        **{name: table.column(name) for name in table.column_names},
        "candidate": pa.array([number] * table.num_rows, pa.int64()),
        "candidate_json": pa.array([config] * table.num_rows, pa.string()),
    }
    return pa.table(columns).select(CANDIDATE_EPOCHS.names).cast(CANDIDATE_EPOCHS)
