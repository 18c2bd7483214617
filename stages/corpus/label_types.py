"""Labels of several files, as of splits, in one type: csv and tsv have none, and each is read by itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from permafrost.stages.corpus.csv_labels import is_whole, more_distinct
from permafrost.stages.corpus.table_files import with_label_as_text
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.corpus.values import holds_text


@dataclass(frozen=True)
class Labelled:
    """The table of a split with a column of labels."""

    table: pa.Table
    label: str
    """The name of the column."""
    written: Callable[[], pa.Table]
    """Gives the table with the labels as the text that stands in csv or tsv; the same one for other files."""

    @classmethod
    def of_file(
        cls, table: pa.Table, path: Path, label: str, how: TextFormat = USUAL
    ) -> "Labelled":
        """The table of a file, or of several that make one split, as it was read."""
        return cls(table, label, partial(with_label_as_text, table, path, how, label))

    @property
    def column(self) -> pa.ChunkedArray:
        """The labels."""
        return self.table.column(self.label)

    @property
    def is_text(self) -> bool:
        """Whether the labels were read as text."""
        kind = self.column.type
        return holds_text(kind.value_type if pa.types.is_dictionary(kind) else kind)

    @property
    def is_number(self) -> bool:
        """Whether the labels were read as numbers."""
        kind = self.column.type
        return pa.types.is_integer(kind) or pa.types.is_floating(kind)

    @property
    def as_text(self) -> "Labelled":
        """With the labels as the text that stands there, if that is csv or tsv."""
        return replace(self, table=self.written())


def typed_alike(found: Sequence[Labelled]) -> list[Labelled]:
    """The same tables; if labels are text in one, or different texts of any would be one number, as 1 and 01,
    those of csv and tsv are text in all."""
    if any(one.is_text for one in found):
        return [one if one.is_text else one.as_text for one in found]
    written = [one.as_text for one in found]
    numbers = [(text, one) for text, one in zip(written, found, strict=True) if one.is_number]
    texts = [text.column.cast(pa.string()) for text, _ in numbers]
    columns = [one.column for _, one in numbers]
    is_merged = all(map(is_whole, columns)) and more_distinct(texts, columns)
    return written if is_merged else list(found)
