"""How text files are written: packed with gzip or not, in which encoding, and what separates fields."""

import codecs
import gzip
import io
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

from pydantic import AfterValidator, Field

from permafrost.storage.quoting import quoted

UTF_8 = "utf-8"
PACKED = ".gz"
"""Extension after that of the format, as in `train.csv.gz`."""


@dataclass(frozen=True)
class TextFormat:
    """What the extension of a file does not say."""

    encoding: str = UTF_8
    """A name of Python's, see `encoding_name`. A byte order mark is skipped."""
    delimiter: str | None = None
    """Between the fields of csv and tsv; None for a comma and a tab."""


USUAL = TextFormat()


def name_the_delimiter(character: str) -> str:
    """What to do about fields that seem to be separated by it, as a sentence without its full stop."""
    shown = "\\t" if character == "\t" else character
    return (
        f"If its fields are separated by {quoted(character)}, write 'delimiter: \"{shown}\"' beside its "
        f"files in kind 'files' or 'tables' (on the command line: --delimiter '{shown}'); elsewhere save it "
        f"as jsonl or parquet"
    )


def name_the_encoding(example: str) -> str:
    """What to do about text that is not UTF-8."""
    return (
        f"save it as UTF-8, or in kind 'files' or 'tables' name its encoding, such as 'encoding: {example}' "
        f"beside its files (on the command line: --encoding {example})"
    )


def encoding_name(given: str) -> str:
    """Python's own name of an encoding, so that two spellings of one are the same.

    Raises:
        ValueError: there is no such encoding of text.
    """
    try:
        name = codecs.lookup(given).name
        "".encode(name)
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"the encoding {quoted(given)} is unknown; there are utf-8, latin-1, cp1252, utf-16, and others "
            "that Python knows"
        ) from error
    return name


def checked_delimiter(given: str) -> str:
    """A delimiter that can stand between fields.

    Raises:
        ValueError: it is not one plain character.
    """
    if len(given) != 1 or not given.isascii() or given in '"\r\n':
        raise ValueError(f"the delimiter is {quoted(given)}; give one such as ';', '|' or a tab")
    return given


Delimiter = Annotated[str, Field(min_length=1, max_length=1), AfterValidator(checked_delimiter)]
"""A field of a config, what separates the fields of csv and tsv."""
Encoding = Annotated[str, AfterValidator(encoding_name)]
"""A field of a config, by a name that Python knows; kept as Python's own name."""


@contextmanager
def opened_bytes(path: Path) -> Generator[io.BufferedReader | gzip.GzipFile]:
    """The content of a file, unpacked."""
    is_packed = path.suffix.lower() == PACKED
    with path.open("rb") as raw:
        if not is_packed:
            yield raw
            return
        with gzip.open(raw) as unpacked:
            yield unpacked


@contextmanager
def opened_text(path: Path, how: TextFormat) -> Generator[TextIO]:
    """The lines of a file, unpacked and decoded. Bytes that are not UTF-8 become lone surrogates, so that
    the row that has them can be named; those that another encoding does not know raise UnicodeDecodeError."""
    is_utf_8 = how.encoding == UTF_8
    with opened_bytes(path) as content:
        yield io.TextIOWrapper(
            content,
            encoding="utf-8-sig" if is_utf_8 else how.encoding,
            errors="surrogateescape" if is_utf_8 else "strict",
        )
