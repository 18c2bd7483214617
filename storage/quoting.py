"""What users wrote, as messages and tables show it: short, on one line, nothing that a terminal obeys."""

import re
import unicodedata

LIMIT = 100
"""Characters of a value that a message quotes, at most."""
MESSAGE_LIMIT = 2_000
"""Characters of a whole message, at most."""

_LONG_RUN = re.compile(r"\S{256,}")
"""Longer than any name a file system takes: nobody reads it to its end."""
_HEAD, _TAIL = 60, 37
_INVISIBLE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories: control characters, lone surrogates, separators of lines and of paragraphs."""
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of writing, and so the order in which a line is seen."""


def visible(text: str) -> str:
    """`text` on one line, control characters written as Python escapes them: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) for c in text)


def quoted(value: object) -> str:
    """A value as Python writes it, its first 100 characters at most; longer ones say how long they are."""
    if isinstance(value, str | bytes):
        if len(value) <= LIMIT:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:LIMIT]!r}… ({len(value):,} {unit})"
    if isinstance(value, int) and value.bit_length() > 256:
        # Python refuses to write integers of more than 4,300 digits.
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}…"


def shortened(message: str) -> str:
    """A message: its line breaks kept, all else visible; cut where a word, or the whole, is too long."""
    lines = [_LONG_RUN.sub(_middle_cut, visible(line)) for line in message.split("\n")]
    text = "\n".join(lines)
    if len(text) <= MESSAGE_LIMIT:
        return text
    return f"{text[:MESSAGE_LIMIT]}… ({len(text):,} characters)"


def _middle_cut(match: re.Match[str]) -> str:
    text = match[0]
    return f"{text[:_HEAD]}…{text[-_TAIL:]} ({len(text):,} characters)"


def _escaped(char: str) -> str:
    if unicodedata.category(char) in _INVISIBLE or char in _REORDERING:
        return char.encode("unicode_escape").decode()
    return char
