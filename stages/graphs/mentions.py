"""Which nodes a text names literally."""

import re
import unicodedata
from collections.abc import Sequence

_WORD = re.compile(r"\w+|[^\w\s]")


def mentioned(labels: Sequence[str], text: str) -> list[int]:
    """Indices of the labels whose words, signs included, occur in a text one after the other, in any case.

    A label does not occur inside a longer word, nor 4 in 42; one without words occurs nowhere.
    """
    words = _spaced(text)
    return [at for at, label in enumerate(labels) if label.strip() and _spaced(label) in words]


def _spaced(text: str) -> str:
    # A letter and its accent may be one character or two, and are the same.
    return f" {' '.join(_WORD.findall(unicodedata.normalize('NFC', text).casefold()))} "
