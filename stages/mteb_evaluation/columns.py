"""Files and columns of local evaluation data, checked. Rows are numbered from 1 in messages."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from stages.corpus.files import read_columns
from stages.corpus.values import values_of
from stages.mteb_evaluation.tasks import LocalTask
from storage.errors import InputError
from storage.quoting import quoted


def existing_file(config: LocalTask, holds: str) -> Path:
    """The file of a task that holds this.

    Raises:
        InputError: it is not there.
    """
    path = config.file(holds)
    if not path.exists():
        raise InputError(
            f"there is no file {path}, where the {holds} of a {config.type} task are expected; relative "
            f"paths count from the working folder {Path.cwd()}"
        )
    return path


def read_table(config: LocalTask, holds: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
    """Some columns of a file, and its name for messages.

    Raises:
        InputError: the file is not there or cannot be read, has no such column, or has no rows.
    """
    path = existing_file(config, holds)
    table = read_columns(path, list(dict.fromkeys(columns)), [])
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows, so the task is empty; give it data or leave it out")
    return table, str(path)


def text_lists_of(table: pa.Table, name: str, where: str) -> list[list[str]]:
    """The column as lists of at least one text."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        is_right = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if not is_right:
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}, expected a list of at "
                f"least one text"
            )
    return values


def classes_of(table: pa.Table, name: str, where: str) -> list[int | str]:
    """The column as classes, whole numbers or names."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        if not isinstance(value, int | str):
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}; classes are whole "
                f"numbers or names"
            )
    return values
