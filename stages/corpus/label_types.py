"""Labels of several files, as of splits, in one type: csv and tsv have none, and each is read by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from permafrost.stages.corpus.table_files import with_label_as_text
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.corpus.values import holds_text


@dataclass(frozen=True)
class Labelled:
    """The table of a file, or of several that make one split, with a column of labels."""

    table: pa.Table
    path: Path
    label: str
    """The name of the column."""
    how: TextFormat = USUAL
    """It was read."""

    @property
    def is_text(self) -> bool:
        """Whether the labels were read as text."""
        kind = self.table.column(self.label).type
        return holds_text(kind.value_type if pa.types.is_dictionary(kind) else kind)

    @property
    def as_text(self) -> "Labelled":
        """With the labels as the text that stands there, if the file is csv or tsv."""
        return replace(self, table=with_label_as_text(self.table, self.path, self.how, self.label))


def typed_alike(found: Sequence[Labelled]) -> list[Labelled]:
    """The same tables; if labels are text in one, those of csv and tsv are so in all."""
    if not any(one.is_text for one in found):
        return list(found)
    return [one if one.is_text else one.as_text for one in found]
