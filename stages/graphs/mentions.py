"""Which nodes a text names literally."""

import re
import unicodedata
from collections.abc import Sequence

from permafrost.stages.graphs.word_pattern import WORD

_WORD = re.compile(rf"{WORD}|[^\w\s]")


def mentioned(labels: Sequence[str], text: str) -> list[int]:
    """Indices of the labels whose words, signs included, occur in a text one after the other, in any case.

    A label does not occur inside a longer word, nor 4 in 42; one without words occurs nowhere. Where a script
    writes no spaces, what stands between two signs counts as one word.
    """
    words = _spaced(text)
    return [at for at, label in enumerate(labels) if label.strip() and _spaced(label) in words]


def _spaced(text: str) -> str:
    # A letter and its accent may be one character or two, and are the same.
    return f" {' '.join(_WORD.findall(unicodedata.normalize('NFC', text).casefold()))} "
