"""Text in Markdown: names and sentences of a report are printed as they are, whatever they hold."""

import re

_INLINE = re.compile(
    r"[\\`*\[\]|~$]"  # code, emphasis, links, cells, strikes, formulas
    r"|<(?=[A-Za-z/!?])"  # a tag; `p < 0.05` stays
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, not the inside of a word
)
_IN_FRONT = re.compile(r"^(?:[-+](?=[-\s]|$)|#+(?=\s|$)|>|\d+(?=[.)](?:\s|$)))")
"""What makes a line a heading, a list, a rule or a quotation."""
_CLOSING = re.compile(r"(?<=\s)#+$")
"""What ends a heading without being shown."""


def literal(text: str) -> str:
    """Text as a paragraph, a heading or the cell of a pipe table prints it, on one line."""
    line = _INLINE.sub(r"\\\g<0>", " ".join(text.split()))
    line = _IN_FRONT.sub(lambda found: _guarded(found[0]), line)
    return _CLOSING.sub(lambda found: f"\\{found[0]}", line)


def _guarded(mark: str) -> str:
    # Of a number it is the sign behind it that makes a list; a digit cannot be escaped.
    return f"{mark}\\" if mark[0].isdigit() else f"\\{mark}"
