"""User input as shown in messages and tables: short, on one line, without control characters."""

import re
import unicodedata

LIMIT = 100
"""Maximum characters of a quoted value."""
MESSAGE_LIMIT = 2_000
"""Maximum characters of a whole message."""

_LONG_RUN = re.compile(r"\S{256,}")
"""Longer than any file name; nobody reads that to the end."""
_HEAD, _TAIL = 60, 37
_INVISIBLE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories: control characters, lone surrogates, separators of lines and of paragraphs."""
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the writing direction, and so the order in which a line appears."""


def visible(text: str) -> str:
    """`text` on one line, with control characters as Python escapes: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) for c in text)


def quoted(value: object) -> str:
    """A value as Python writes it, at most its first 100 characters; for a longer one also its length."""
    if isinstance(value, str | bytes):
        if len(value) <= LIMIT:
            return repr(value)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:LIMIT]!r}… ({len(value):,} {unit})"
    if isinstance(value, int) and value.bit_length() > 256:
        # Python refuses to convert integers of more than 4,300 digits.
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1:,} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}…"


def counted(n: int, what: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def shortened(message: str) -> str:
    """A message with its line breaks kept and all else made visible, cut if a word or the whole is too
    long."""
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
