"""How tables of graphs are written, as far as their extensions do not say it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel

from permafrost.stages.corpus.table_files import file_format, format_with
from permafrost.stages.corpus.text_format import (
    USUAL,
    UTF_8,
    Delimiter,
    Encoding,
    TextFormat,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class TableForm(BaseModel):
    """Fields of what reads several tables."""

    delimiter: Delimiter | None = None
    """Between the fields of csv and tsv files; a comma and a tab if not given."""
    encoding: Encoding = UTF_8
    """Of csv, tsv and jsonl files, by a name that Python knows (latin-1, cp1252, utf-16)."""

    def formats(self, files: Mapping[str, str]) -> Callable[[Path], TextFormat]:
        """The format of each of these files: parquet has neither a delimiter nor an encoding, jsonl no
        delimiter, and they may stand beside files that have.

        Args:
            files: their paths by what they hold.

        Raises:
            InputError: no file has what is given.
        """
        kinds = {name: file_format(Path(path)) for name, path in files.items()}
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        if self.delimiter is not None and not {"csv", "tsv"} & {*kinds.values()}:
            raise InputError(
                f"delimiter is {quoted(self.delimiter)}, but no file has one ({listed}); leave it out"
            )
        if self.encoding != UTF_8 and {*kinds.values()} == {"parquet"}:
            raise InputError(
                f"encoding is {quoted(self.encoding)}, but no file has one ({listed}); leave it out"
            )
        return self._format

    def _format(self, path: Path) -> TextFormat:
        kind = file_format(path)
        if kind == "parquet":
            return USUAL
        delimiter = self.delimiter if kind in ("csv", "tsv") else None
        return format_with(path, delimiter, self.encoding)
