"""One entry of the results, with mean and spread over seeds, and how numbers are printed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DASH = "–"
"""Printed in place of a missing number."""
TIED = "≈"
"""Marks a method that is not significantly worse than the best of its column."""
MOST_NAMED = 6
"""Things that a note lists by name."""

_SMALLEST_P = 0.0005
_PRINTED = 0.0005
"""The smallest fraction that is not 0.0 times 100, with one decimal."""
_LEVELS = (0.1, 0.05, 0.01)
_MOST_PLACES = 12


@dataclass(frozen=True)
class Entry:
    """Test metric of one method on one task, over seeds."""

    mean: float
    sd: float | None
    """Sample standard deviation (ddof 1); None for a single seed."""
    n: int
    """Number of seeds."""

    @property
    def text(self) -> str:
        """`87.3 ± 1.2`."""
        return f"{hundredths(self.mean)} ± {DASH if self.sd is None else hundredths(self.sd)}"


def hundredths(value: float) -> str:
    """A fraction times 100, with one decimal and a typographic minus."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def share(value: float) -> str:
    """A share times 100, which is never printed as none if there is some."""
    return "under 0.1" if 0 < value < _PRINTED else hundredths(value)


def signed(value: float) -> str:
    """Like `hundredths`, with a plus sign before positive numbers."""
    text = hundredths(value)
    return text if text.startswith(("−", "0.0")) else f"+{text}"


def magnitude(n: int) -> str:
    """A count below ten thousand in full, others with about three digits: `12.3 k`, `1.2 M`, `3.4 G`."""
    if n < 9_999.5:
        return f"{n:,}"
    for unit, size in (("k", 1e3), ("M", 1e6)):
        if n < 999.95 * size:
            return f"{n / size:.1f} {unit}"
    return f"{n / 1e9:,.1f} G"


def p_text(p: float) -> str:
    """A p-value with two decimals, or three below 0.1; `<0.001` where these would be zeros.

    One below a usual significance level is not rounded up to it: `0.0496`.
    """
    if p < _SMALLEST_P:
        return "<0.001"
    places = 3 if p < _LEVELS[0] else 2
    while any(p < level <= float(f"{p:.{places}f}") for level in _LEVELS) and places < _MOST_PLACES:
        places += 1
    return f"{p:.{places}f}"


def p_clause(text: str) -> str:
    """A p-value in a sentence, of its text: `p = 0.03`, `p < 0.001`."""
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def entry(values: Sequence[float]) -> Entry:
    """Mean and sample standard deviation of at least one value."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Entry(mean=float(np.mean(values)), sd=sd, n=len(values))


def mean_text(number: Entry | None) -> str:
    """The mean as printed."""
    return DASH if number is None else hundredths(number.mean)


def seconds(value: float | None) -> str:
    """A time in seconds as printed: two significant digits below ten seconds, else whole seconds."""
    if value is None:
        return DASH
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def some(things: Sequence[str]) -> str:
    """The first things by name, and how many more there are."""
    more = f" and {len(things) - MOST_NAMED} more" if len(things) > MOST_NAMED else ""
    return f"{', '.join(things[:MOST_NAMED])}{more}"
