"""Tables in JSON: one object per line (jsonl), or one list of objects (json)."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.text_format import PACKED, UTF_8, TextFormat, opened_text
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

BLOCK_BYTES = 1 << 24
"""Block size for reading. A row must fit into one block; some documents exceed the default of 1 MiB."""

FirstValues = dict[str, tuple[int, Any]]
"""The number of a row, from 1, and its value, by field."""


def arrow_input(path: Path) -> Path | pa.NativeFile:
    """What Arrow reads of a file: by itself it unpacks what ends in `.gz`, not in `.GZ`."""
    is_packed = path.suffix.lower() == PACKED
    return pa.input_stream(str(path), compression="gzip") if is_packed else path


class JsonFile:
    """One file, of the format `jsonl` or `json`."""

    def __init__(self, path: Path, kind: str, how: TextFormat) -> None:
        self.path, self._kind, self._how = path, kind, how
        self._records = _records(path, how) if kind == "json" else None

    def lines(self) -> Iterator[str]:
        """One object as text for each row; blank lines are left out."""
        if self._records is not None:
            yield from map(json.dumps, self._records)
            return
        with opened_text(self.path, self._how) as file:
            yield from (line for line in file if line.strip())

    def first(self) -> dict[str, Any]:
        """The first row.

        Raises:
            InputError: it is no JSON object.
        """
        if self._records is not None:
            return self._records[0]
        line = next(self.lines(), "")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{self.path} does not begin with a JSON object on one line ({error}): {quoted(line[:60])}; "
                "jsonl is one object per line"
            ) from error
        if not isinstance(value, dict):
            raise InputError(
                f"{self.path} begins with a JSON {type(value).__name__}, expected an object such as "
                '{"text": "..."} on every line'
            )
        return value

    def columns(self) -> list[str]:
        """The fields that any row has, in the order in which they first occur.

        Raises:
            InputError: the first row is no JSON object.
        """
        names = dict.fromkeys(self.first())
        for _, row in self._rows():
            names.update(dict.fromkeys(row))
        return list(names)

    def first_values(self, names: Sequence[str], empty: Sequence[Any] = (None,)) -> FirstValues:
        """The first value of each of these fields that is none of `empty`, with the number of its row from 1;
        nothing for a field without one."""
        found: FirstValues = {}
        missing = set(names)
        for number, row in self._rows():
            for name in [name for name in missing if row.get(name) not in empty]:
                found[name] = (number, row[name])
                missing.remove(name)
            if not missing:
                break
        return found

    def read(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        negatives: Sequence[str],
        ids: Sequence[str],
        optional: Sequence[str],
        lists: Sequence[str],
        known: Sequence[str] | None = None,
    ) -> pa.Table:
        """Some columns, null where a row lacks the field.

        `known` are columns that may be read though this file has none of them; for the other arguments see
        `table_files.read_columns`.
        """
        path, wanted = self.path, (*texts, *labels, *negatives, *ids, *lists)
        self.first()
        first = self.first_values(wanted)
        if any(name not in first for name in wanted):
            require_columns(self.columns() if known is None else known, wanted, str(path))
        types = {name: pa.large_string() for name in (*texts, *optional)}
        types |= {name: _type(first, name, path) for name in labels}
        types |= {name: _text_type(first, name) for name in negatives}
        types |= {name: _id_type(first, name, path) for name in ids}
        if lists:
            filled = self.first_values(lists, (None, []))
            types |= {name: _list_type(filled, name, path) for name in lists}
        fields = list(types.items())
        # With an explicit schema, other columns are not parsed and cannot fail.
        parsing = pa.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
        )
        reading = pa.json.ReadOptions(block_size=BLOCK_BYTES)
        try:
            return pa.json.read_json(self._source(), reading, parsing)
        except pa.ArrowInvalid as error:
            self._refuse_first(types)
            # Arrow counts rows from 0, and anew in every block.
            raise pa.ArrowInvalid(re.sub(r" in row \d+$", "", str(error))) from error

    def _refuse_first(self, types: Mapping[str, pa.DataType]) -> None:
        """Raises: InputError: a row is no object, or has a value of another type than its column."""
        for number, line in enumerate(self.lines(), start=1):
            where = f"row {number} of {self.path}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{where} is no JSON object on one line ({error}): {quoted(line[:60])}; repair it"
                ) from error
            if not isinstance(row, dict):
                raise InputError(
                    f'{where} is {quoted(row)}, expected an object such as {{"text": "..."}}'
                )
            for name, kind in types.items():
                if not _fits(value := row.get(name), kind):
                    raise InputError(
                        f"{where} has {quoted(value)} in column {quoted(name)}, expected "
                        f"{_JSON_NAMES.get(kind, 'lists')}; give all rows of a column one type"
                    )

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows with their numbers, without those that are broken, which Arrow names as it reads them."""
        if self._records is not None:
            yield from enumerate(self._records, start=1)
            return
        for number, line in enumerate(self.lines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield number, row

    def _source(self) -> Path | pa.NativeFile:
        """What Arrow reads: the file, or where it is no jsonl in UTF-8 its rows as such."""
        if self._records is None and self._how.encoding == UTF_8:
            return arrow_input(self.path)
        return pa.BufferReader("\n".join(self.lines()).encode())


_JSON_NAMES = {
    pa.large_string(): "text",
    pa.float64(): "numbers",
    pa.int64(): "whole numbers",
    pa.bool_(): "true or false",
}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON may stand in a column of this type of Arrow's."""
    if value is None or pa.types.is_null(kind):
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits(one, kind.value_type) for one in value)
    if pa.types.is_boolean(kind) or isinstance(value, bool):
        return pa.types.is_boolean(kind) and isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int)
    return isinstance(value, str if pa.types.is_large_string(kind) else int | float)


def _records(path: Path, how: TextFormat) -> list[dict[str, Any]]:
    """The objects of a list; at least one."""
    with opened_text(path, how) as file:
        text = file.read()
    wanted = 'a .json file is one list of objects, such as [{"text": "..."}]'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); {wanted}; a file of one object per line is called .jsonl"
        ) from error
    if not isinstance(value, list):
        raise InputError(
            f"{path} holds a JSON {type(value).__name__}; {wanted}: save the list alone"
        )
    if not value:
        raise InputError(f"{path} has no rows; give at least one text")
    for row, one in enumerate(value, start=1):
        if not isinstance(one, dict):
            raise InputError(f"row {row} of {path} is {quoted(one)}; {wanted}")
    return value


def _type(first: FirstValues, name: str, path: Path) -> pa.DataType:
    if name not in first:
        return pa.null()
    row, value = first[name]
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int | float):
        return pa.float64()
    if isinstance(value, str):
        return pa.large_string()
    raise InputError(
        f"row {row} of {path}: the label in column {quoted(name)} is {quoted(value)}, expected a number or "
        "text"
    )


def _text_type(first: FirstValues, name: str) -> pa.DataType:
    """Text or lists of text."""
    if name not in first:
        return pa.null()
    return pa.list_(pa.large_string()) if isinstance(first[name][1], list) else pa.large_string()


def _list_type(first: FirstValues, name: str, path: Path) -> pa.DataType:
    if name not in first:
        return pa.list_(pa.null())
    row, value = first[name]
    if not isinstance(value, list):
        raise InputError(
            f"row {row} of {path} has {quoted(value)} in column {quoted(name)}, expected a list of "
            "numbers or texts"
        )
    return pa.list_(_type({name: (row, value[0])}, name, path))


def _id_type(first: FirstValues, name: str, path: Path) -> pa.DataType:
    if name not in first:
        return pa.null()
    row, value = first[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.int64()
    if isinstance(value, str):
        return pa.large_string()
    raise InputError(
        f"row {row} of {path}: the id in column {quoted(name)} is {quoted(value)}, expected text or a "
        "whole number"
    )
