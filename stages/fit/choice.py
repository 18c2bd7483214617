"""Choosing among fits: the highest metric on dev wins, the first of equal ones."""

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Sequence
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
class Fitted:
    """What a fit says of itself."""

    record: dict[str, Any]
    """The content of its file."""
    settings: dict[str, Any]
    """How it was trained."""
    dev_metric: float | None
    """None where nothing could be measured on dev."""


@dataclass(frozen=True)
class Form:
    """Where fits of a kind keep what a choice reads and copies."""

    record: str
    """The name of the file that says what it is; JSON."""
    weights: str
    """The name of the file with its parameters."""
    read: Callable[[Path], Fitted]
    """What a fit's folder says of it."""


def _fitted(folder: Path) -> Fitted:
    record = read_record(folder)
    return Fitted(record, record["chosen"], record["dev_metric"])


HEAD = Form("head.json", "head.safetensors", _fitted)
"""Heads on the tokens of one layer."""


@dataclass(frozen=True)
class Choice:
    """The trained head that was chosen, and how all were trained."""

    form: Form
    fits: tuple[Path, ...]
    """Folders of the fits, in the order of the candidates."""
    candidate: int
    """Which of them was chosen, from 0."""
    dev_metric: float | None

    def save(self, folder: Path) -> None:
        """Write the same files as a fit: the chosen head, and the history and log of all candidates, with a
        column for the candidate."""
        chosen = self.fits[self.candidate]
        shutil.copyfile(chosen / self.form.weights, folder / self.form.weights)
        record = self.form.read(chosen).record | {"candidate": self.candidate}
        (folder / self.form.record).write_text(
            json.dumps(record, indent=2) + "\n", encoding="utf-8"
        )
        histories = [self._numbered(i) for i in range(len(self.fits))]
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

    def _numbered(self, number: int) -> pa.Table:
        """The history of a fit, with columns that identify the candidate."""
        fit = self.fits[number]
        table = pq.read_table(fit / HISTORY)
        config = json.dumps(self.form.read(fit).settings)
        columns = {
            **{name: table.column(name) for name in table.column_names},
            "candidate": pa.array([number] * table.num_rows, pa.int64()),
            "candidate_json": pa.array([config] * table.num_rows, pa.string()),
        }
        return pa.table(columns).select(CANDIDATE_EPOCHS.names).cast(CANDIDATE_EPOCHS)


def choose(fits: Sequence[Path], form: Form = HEAD) -> Choice:
    """Choose among the fits in these folders.

    Raises:
        NotFoundError: a folder holds no trained head.
        CorruptDataError: its record is damaged.
    """
    found = [form.read(fit).dev_metric for fit in fits]
    best = max(range(len(fits)), key=lambda i: -math.inf if (m := found[i]) is None else m)
    return Choice(form, tuple(fits), best, found[best])


def chosen_candidate(folder: Path, form: Form) -> int:
    """Which candidate `Choice.save` kept in `folder`, from 0; that of a fit, which is the only one, is 0."""
    return form.read(folder).record.get("candidate", 0)


def bar_after(fit: Path) -> float:
    """The dev metric that the next candidate of a grid with patience has to beat: the best of this fit and of
    those before it."""
    record: dict[str, Any] = read_record(fit)
    before = record["to_beat"]
    return record["dev_metric"] if before is None else max(record["dev_metric"], before)
