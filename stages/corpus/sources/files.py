"""Corpora from files: parquet, csv, tsv, jsonl, or txt with one text per line."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import ColumnsSource
from permafrost.stages.corpus.table_files import (
    column_names,
    file_format,
    file_sha256,
    read_columns,
)


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
    """Split to path; the format follows from the extension: .parquet, .csv, .tsv, .jsonl or .txt. Quotation
    marks in tsv files are part of the text. For a split in several files give their folder, or a pattern such
    as `data/train-*.parquet`; rows are then numbered across all of them."""

    def split_names(self) -> list[str]:
        """The splits in `files`."""
        return list(self.files)

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            "kind": self.kind,
            "files": {
                split: {"format": file_format(Path(path)), "sha256": file_sha256(Path(path))}
                for split, path in self.files.items()
            },
            "task": self.task.model_dump(),
            "dev": self.dev.model_dump(),
            "test": self.test.model_dump(),
        }

    def rows(self) -> list[SplitRows]:
        """Read and check every split, in the order given."""
        rows: list[SplitRows] = []
        for split, path in self.files.items():
            where = f"{path} (plain text, one text per line)" if path.endswith(".txt") else path
            task = self.task.named(column_names(Path(path)), where)
            columns = (task.text_columns, task.label_columns, task.negative_columns)
            rows.append(task.rows(read_columns(Path(path), *columns), split, path))
        return rows
