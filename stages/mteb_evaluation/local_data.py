"""What the files of a local task hold, in the columns that mteb's task classes expect."""

from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class LocalData:
    """Checked data of a local task. Texts may be blank; nothing is missing."""

    tables: dict[str, Columns]
    """`test` (and `train`), or `queries` and `corpus`, with mteb's column names."""
    relevant: dict[str, dict[str, int]] = field(default_factory=dict)
    """Query to its relevant documents, where documents are searched for."""
    candidates: dict[str, list[str]] | None = None
    """Query to the documents that are ranked for it; None where all are."""

    class_names: tuple[str, ...] = ()
    """By label, where labels are numbers of classes."""

    @property
    def n_examples(self) -> int:
        """Pairs, texts, queries, or documents with summaries, that are scored."""
        columns = self.tables["queries" if "queries" in self.tables else "test"]
        return len(next(iter(columns.values())))
