"""The content of a local task's files, in the columns that mteb's task classes expect."""

from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class LocalData:
    """Checked data of a local task. Texts may be blank; nothing is missing."""

    tables: dict[str, Columns]
    """`test` (and `train`), or `queries` and `corpus`, with mteb's column names."""
    relevant: dict[str, dict[str, int]] = field(default_factory=dict)
    """The relevant documents of each query with their grades, for retrieval."""
    candidates: dict[str, list[str]] | None = None
    """The documents that are ranked for each query; None if all documents are."""
    class_names: tuple[str, ...] = ()
    """Names by label, if labels are class indices."""

    @property
    def n_examples(self) -> int:
        """Number of pairs, texts, queries, or documents with summaries."""
        columns = self.tables["queries" if "queries" in self.tables else "test"]
        return len(next(iter(columns.values())))
