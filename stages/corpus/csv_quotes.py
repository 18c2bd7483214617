"""Two faults of csv that Arrow passes over in silence.

It takes the end of a file for the end of a quoted field, so that all rows after a mark that nothing closes
are one text. And it reads on after a mark that closes, so that `"Great film` ends at the next mark, rows
below, whatever comes after that. Python's own `csv` with `strict` refuses both, but takes longer than Arrow
takes to read the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from permafrost.stages.corpus.text_format import USUAL, UTF_8, TextFormat, opened_bytes, opened_text
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_MOST_SHOWN = 40
_REPAIR = (
    'in csv a field that begins with a quotation mark ends with one, and those inside are doubled (""); '
    "double them, or write the texts as jsonl or parquet"
)


def require_closed_quotes(path: Path, how: TextFormat = USUAL) -> None:
    """Check that each quoted field of a csv is closed, and that a delimiter or a new line comes after it.

    A mark in a field that does not begin with one (`5" pipe`) is part of the text.

    Raises:
        InputError: a field is not closed, or goes on after that; the message has the line where it opens.
        UnicodeDecodeError: the file has another encoding.
    """
    delimiter = how.delimiter or ","
    opened, before, start = None, b"\n", 0
    for chunk in _chunks(path, how):
        if b'"' in chunk:
            marks = _marks(before, chunk, delimiter, opened is not None)
            if (wrong := marks.goes_on()) is not None:
                at = marks.opened_before(wrong)
                begun = opened if at is None else start + at
                end = int(marks.ends[wrong])
                rest = chunk[end : end + _MOST_SHOWN].decode(errors="ignore")
                shown = re.split("[\r\n]", rest, maxsplit=1)[0]
                raise InputError(
                    f"the quoted field that begins on line {_line(path, how, begun)} of {path} is closed on "
                    f"line {_line(path, how, start + end)}, where {quoted(shown)} comes after it instead of "
                    f"{quoted(delimiter)} or a new line; {_REPAIR}"
                )
            at = marks.opened_before(len(marks.firsts))
            if not marks.is_open[-1]:
                opened = None
            elif at is not None:
                opened = start + at
        before, start = chunk[-1:], start + len(chunk)
    if opened is not None:
        raise InputError(
            f"the quoted field that begins on line {_line(path, how, opened)} of {path} is never closed, so "
            f"that all rows below would be part of it; {_REPAIR}"
        )


@dataclass(frozen=True)
class _Marks:
    """Runs of quotation marks in a chunk. Two marks beside each other inside a field are one of its text."""

    firsts: np.ndarray[Any, np.dtype[np.int64]]
    """Where each run begins."""
    ends: np.ndarray[Any, np.dtype[np.int64]]
    """The place after each run."""
    begins: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether a field may begin with the run."""
    is_odd: np.ndarray[Any, np.dtype[np.bool_]]
    was_open: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether a quoted field is open before the run."""
    is_open: np.ndarray[Any, np.dtype[np.bool_]]
    """And after it."""
    is_done: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether a field may end with the run."""

    def goes_on(self) -> int | None:
        """The first run that closes a field which does not end there."""
        closes = np.where(self.was_open, self.is_odd, self.begins & ~self.is_odd)
        wrong = closes & ~self.is_done
        return int(wrong.argmax()) if wrong.any() else None

    def opened_before(self, run: int) -> int | None:
        """Where the field opens that a run closes, or that is open after all; None for an earlier chunk."""
        if run < len(self.firsts) and not self.was_open[run]:
            return int(self.firsts[run])
        opening = np.flatnonzero((self.is_open & ~self.was_open)[:run])
        return int(self.firsts[opening[-1]]) if len(opening) else None


def _marks(before: bytes, chunk: bytes, delimiter: str, is_open: bool) -> _Marks:
    """The marks of a chunk that has some, after a byte, and with a field open or not."""
    found = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord('"'))
    gaps = np.flatnonzero(np.diff(found) > 1)
    firsts, ends = found[np.append(0, gaps + 1)], found[np.append(gaps, len(found) - 1)] + 1
    # One byte before the chunk, and one after the end of the file, which ends a field as well.
    around = np.frombuffer(before + chunk + b"\n", np.uint8)
    separates = np.zeros(256, bool)
    separates[[ord(delimiter), ord("\r"), ord("\n")]] = True
    begins, is_odd = separates[around[firsts]], (ends - firsts) % 2 == 1
    # An odd run opens or closes where a field may begin, and closes or is part of the text elsewhere.
    flips = np.cumsum(begins & is_odd) + is_open
    closes = is_odd & ~begins
    after = (flips - np.maximum.accumulate(np.where(closes, flips, 0))) % 2 == 1
    return _Marks(
        firsts=firsts,
        ends=ends,
        begins=begins,
        is_odd=is_odd,
        was_open=np.append(is_open, after[:-1]),
        is_open=after,
        is_done=separates[around[ends + 1]],
    )


def _chunks(path: Path, how: TextFormat) -> Iterator[bytes]:
    """The content in UTF-8, in parts that end with no quotation mark, except at the end of the file."""
    held = b""
    for block in _blocks(path, how):
        joined = held + block
        part = joined.rstrip(b'"')
        held = joined[len(part) :]
        if part:
            yield part
    if held:
        yield held


def _blocks(path: Path, how: TextFormat) -> Iterator[bytes]:
    if how.encoding == UTF_8:
        with opened_bytes(path) as content:
            yield content.read(_BLOCK_BYTES).removeprefix(_BOM)
            while block := content.read(_BLOCK_BYTES):
                yield block
    else:
        with opened_text(path, how) as text:
            yield text.read(_BLOCK_BYTES).encode(errors="replace").removeprefix(_BOM)
            while part := text.read(_BLOCK_BYTES):
                yield part.encode(errors="replace")


def _line(path: Path, how: TextFormat, place: int | None) -> int:
    """The line of a byte, from 1, as editors count."""
    assert place is not None, "a field is closed that was never opened"
    line, left, before = 1, place, b""
    for block in _blocks(path, how):
        part = block[:left]
        line += part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
        line -= before == b"\r" and part.startswith(b"\n")
        left -= len(part)
        if not left:
            break
        before = part[-1:]
    return line
