"""Colours and markers: every method has the same ones in all figures; all other rows are grey.

The hues are Okabe and Ito's, which can be told apart with any kind of colour vision; markers and line styles
distinguish methods without colour. A stand-alone picture uses the light values; in the page each becomes a
custom property of the style sheet, which also has a dark value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.report.tables import ResultsTable

PAPER = "#ffffff"


INK = "#1b2126"


MUTED = "#56616b"


GRID = "#e1e6ea"


CONTROL = "#6d7882"


SERIES = ("#0072b2", "#d55e00", "#00896a", "#b04a8b", "#a97a00", "#5b4fc4", "#8a5a2e", "#2b8ca3")


HEAT = ("none", "#fdf3e0", "#fbe5bf", "#f9cf8a", "#f3b04f", "#e88d1c", "#b35900")
"""Colours of token weights, from a quarter of uniform or less (first) to 16 times uniform or more (last)."""


KIND_COLOURS = ("#c3cbd4", "#ead9a8", "#8fc7c0", "#d3ebe8")
"""Colours of kinds of token: special, punctuation, first of a word, continuation."""


CUSTOM_PROPERTIES = {
    PAPER: "var(--paper)",
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    CONTROL: "var(--control)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES)},
    **{colour: f"var(--kind-{i})" for i, colour in enumerate(KIND_COLOURS)},
}
"""Custom property of the page's style sheet for each colour of a figure."""


_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")


_CONTROL_MARKERS = ("x", "+", "*", "1", "2", "3")


_CONTROL_DASHES = ((1.0, 1.6), (4.0, 1.6), (4.0, 1.6, 1.0, 1.6))


@dataclass(frozen=True)
class Mark:
    """How one row of the results is drawn."""

    colour: str
    marker: str
    dashes: tuple[float, ...]
    """On and off lengths; empty for a solid line."""
    filled: bool


def marks(table: ResultsTable) -> dict[str, Mark]:
    """A mark for every method, baseline and control, by name, in the table's order."""
    methods = [row.method for row in table.of_role("method")]
    others = [row.method for row in table.rows if row.role != "method"]
    controls = list(dict.fromkeys(others))
    return {
        **{name: _method(i) for i, name in enumerate(methods)},
        **{name: _control(i) for i, name in enumerate(controls)},
    }


def class_mark(i: int) -> Mark:
    """How points of a class are drawn, by its index among those shown."""
    return _method(i)


def rest_mark() -> Mark:
    """How points of all other classes are drawn: grey and small."""
    return Mark(CONTROL, ".", (), filled=True)


def extended(marks: dict[str, Mark], methods: Sequence[str]) -> dict[str, Mark]:
    """The marks, with new ones for methods that have none yet."""
    new = [name for name in dict.fromkeys(methods) if name not in marks]
    n_taken = sum(mark.colour != CONTROL for mark in marks.values())
    return {**marks, **{name: _method(n_taken + i) for i, name in enumerate(new)}}


def _method(i: int) -> Mark:
    turn = i // len(SERIES)
    return Mark(_turning(SERIES, i), _turning(_MARKERS, i + turn), (), filled=turn % 2 == 0)


def _control(i: int) -> Mark:
    dashes = _CONTROL_DASHES[i % len(_CONTROL_DASHES)]
    return Mark(CONTROL, _turning(_CONTROL_MARKERS, i), dashes, filled=True)


def _turning(values: Sequence[str], i: int) -> str:
    return values[i % len(values)]
