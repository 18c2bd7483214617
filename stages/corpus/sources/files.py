"""Corpora from files: parquet, csv, tsv, jsonl, json, or txt with one text per line; text may be packed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from permafrost.stages.corpus.columns import TaskColumns
from permafrost.stages.corpus.data_files import FORMATS, data_files, extension_of
from permafrost.stages.corpus.label_types import Labelled, typed_alike
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import ColumnsSource, test_part
from permafrost.stages.corpus.table_files import (
    column_names,
    content_sha256,
    file_format,
    format_with,
    likely_delimiter,
    read_columns,
)
from permafrost.stages.corpus.text_format import (
    UTF_8,
    Delimiter,
    Encoding,
    name_the_delimiter,
)
from permafrost.storage.errors import InputError


class FilesCorpus(ColumnsSource):
    """Files on disk, one per split.

    ```yaml
    kind: files
    files: {train: data/train.csv, test: data/test.csv}
    task: {kind: classification, text: sentence, label: polarity}
    dev: {kind: from_train, fraction: 0.1}
    ```
    """

    kind: Literal["files"] = "files"
    files: dict[str, str] = Field(min_length=1)
    """Split to path; the format follows from the extension: .parquet, .csv, .tsv, .jsonl (objects, one on
    every line), .json (a list of objects) or .txt; all but the first may be packed with gzip (.csv.gz).
    Quotation marks in tsv files are part of the text. For a split in several files give their folder, or a
    pattern such as `data/train-*.parquet`; rows are then numbered across all of them."""
    delimiter: Delimiter | None = None
    """What separates the fields of csv and tsv files; a comma and a tab if not given."""
    encoding: Encoding = UTF_8
    """Encoding of files of text: `latin-1`, `cp1252`, `utf-16`, or another one that Python knows."""

    def split_names(self) -> list[str]:
        """The splits in `files`."""
        return list(self.files)

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            "kind": self.kind,
            "files": {
                split: {"format": file_format(Path(path)), "sha256": content_sha256(Path(path))}
                for split, path in self.files.items()
            },
            # Corpora of files without them keep the keys that they had before there were these fields.
            **({} if self.delimiter is None else {"delimiter": self.delimiter}),
            **({} if self.encoding == UTF_8 else {"encoding": self.encoding}),
            "task": self.task.model_dump(),
            "dev": self.dev.model_dump(),
            "test": self.test.model_dump(),
            **self.sample_facts(),
        }

    def tested_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """SHA-256 of the file of test, or of train where test is taken from that."""
        return test_part({split: file["sha256"] for split, file in facts["files"].items()})

    def rows(self) -> list[SplitRows]:
        """Read and check every split, in the order given."""
        tables: list[pa.Table] = []
        tasks: list[TaskColumns] = []
        labelled: list[Labelled] = []
        for path in map(Path, self.files.values()):
            how = format_with(path, self.delimiter, self.encoding)
            task = self._task_of(str(path), column_names(path, how))
            columns = (task.text_columns, task.label_columns, task.negative_columns)
            table = read_columns(path, *columns, how=how)
            tables.append(table)
            tasks.append(task)
            labelled += [Labelled.of_file(table, path, name, how) for name in task.class_columns]
        if labelled:
            tables = [one.table for one in typed_alike(labelled)]
        return [
            self.sampled(task.rows(table, split, path))
            for table, task, (split, path) in zip(tables, tasks, self.files.items(), strict=True)
        ]

    def _task_of(self, path: str, names: Sequence[str]) -> TaskColumns:
        """The task with the columns of a file."""
        is_plain = FORMATS[extension_of(data_files(Path(path))[0])] == "txt"
        where = f"{path} (plain text, one text per line)" if is_plain else path
        try:
            return self.task.named(names, where)
        except InputError as error:
            other = None if self.delimiter else likely_delimiter(Path(path), self.encoding)
            if other is None:
                raise
            raise InputError(f"{error}. {name_the_delimiter(other)}") from error
