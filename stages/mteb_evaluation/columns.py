"""Files and columns of local evaluation data, checked. Rows are numbered from 1 in messages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from permafrost.stages.corpus.labels import require_told_apart
from permafrost.stages.corpus.names import CLASS, TEXT, find_column, find_pair
from permafrost.stages.corpus.table_files import column_names, file_format, read_columns
from permafrost.stages.corpus.values import holds_lists, holds_text, texts_of, unnested, values_of
from permafrost.stages.mteb_evaluation.task import LocalTask
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class LocalFile:
    """A file of a task, with the names of its columns."""

    path: Path
    names: tuple[str, ...]

    @property
    def where(self) -> str:
        """Its name for messages."""
        return str(self.path)

    def column(self, field: str, name: str, usual: Sequence[str]) -> str:
        """The column that a field refers to; raises as `find_column`."""
        return find_column(field, name, usual, self.names, self.where)

    def pair(self, text: str | None, text_pair: str | None) -> tuple[str, str]:
        """The columns of two texts; raises as `find_pair`."""
        # mteb's own names first, where a file has several pairs.
        of_mteb = ("sentence1", "sentence2")
        usual = of_mteb if all(n in self.names for n in of_mteb) else ("text", "text_pair")
        return find_pair((text or usual[0], text_pair or usual[1]), usual, self.names, self.where)

    def read(
        self,
        texts: Sequence[str] = (),
        *,
        ids: Sequence[str] = (),
        labels: Sequence[str] = (),
        lists: Sequence[str] = (),
    ) -> pa.Table:
        """Some columns.

        Raises:
            InputError: the file cannot be read, or has no rows.
        """
        table = read_columns(self.path, texts, labels, lists, ids=ids)
        if table.num_rows == 0:
            raise InputError(
                f"{self.path} has no rows, so the task is empty; give it data or leave it out"
            )
        return table

    def read_flat(self, texts: Sequence[str], labels: Sequence[str]) -> pa.Table:
        """As `read`, but if the columns hold lists, with one row per element.

        Raises:
            InputError: lists of a row have different lengths; see also `read`.
        """
        if not holds_lists(self.path, [*texts, *labels]):
            return self.read(texts, labels=labels)
        return unnested(self.path, texts, labels)


def open_file(config: LocalTask, holds: str) -> LocalFile:
    """The file of a task that holds this.

    Raises:
        InputError: it is missing, or cannot be read.
    """
    path = config.file(holds)
    return LocalFile(path, tuple(column_names(path)))


def open_labelled(
    config: LocalTask, holds: str, text: str, label: str
) -> tuple[pa.Table, str, str, str]:
    """A table of texts with classes, its text and label columns, and the name of its file.

    Args:
        config: the task.
        holds: what the file holds.
        text: the field of that name.
        label: the field of that name.

    Raises:
        InputError: see `open_file` and `LocalFile.read_flat`.
    """
    file = open_file(config, holds)
    text = file.column("text", text, TEXT)
    label = file.column("label", label, CLASS)
    return file.read_flat([text], [label]), text, label, file.where


def text_lists_of(table: pa.Table, name: str, where: str) -> list[list[str]]:
    """The column as lists of at least one text; a text cell is a single text, or a JSON list of several."""
    if holds_text(table.column(name).type):
        values = [_listed(text) for text in texts_of(table, name, where)]
    else:
        values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        is_right = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if not is_right:
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}, expected a list of at "
                f"least one text"
            )
    return values


def _listed(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [text]


def classes_of(table: pa.Table, name: str, where: str) -> list[int | str]:
    """The column as classes, whole numbers or names.

    Raises:
        InputError: a value is missing, blank or of another type, or two classes differ in spaces alone.
    """
    note = ""
    if file_format(Path(where)) in ("csv", "tsv"):
        note = "; in csv NA, null and nan count as missing, in jsonl and parquet they are names"
    # Integers are often stored as float, and always in jsonl.
    values: list[Any] = [
        int(v) if isinstance(v, float) and v.is_integer() else v
        for v in values_of(table, name, where, note)
    ]
    for row, value in enumerate(values, start=1):
        if not isinstance(value, int | str):
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}; classes are whole "
                f"numbers or names"
            )
        if isinstance(value, str) and not value.strip():
            raise InputError(
                f"row {row} of {where} has the blank class {quoted(value)} in column {quoted(name)}; fill "
                "it, or remove the row"
            )
    require_told_apart(dict.fromkeys(values), name, where)
    return values
