"""What a word is in any script that writes spaces between words, as part of a regular expression."""

import unicodedata

_IN_SCRIPTS = 0x20000
"""Behind it are no marks but selectors."""
_MARKS = "".join(
    mark
    for mark in map(chr, range(_IN_SCRIPTS))
    if unicodedata.category(mark) in ("Mn", "Mc")
    and "VARIATION SELECTOR" not in unicodedata.name(mark, "")
)
"""Accents, vowel signs and the like, which Python's `\\w` lacks; without those that choose how an emoji
looks."""
_JOINERS = "\u200c\u200d"
"""Of no width: they stand inside words, as in Persian and in Indian scripts."""

WORD = rf"\w[\w{_MARKS}]*(?:[{_JOINERS}]+[\w{_MARKS}]+)*"
"""A letter, digit or underscore, and more of these, their marks and joiners between them."""
