"""What an answer without knowledge scores in accuracy, and what that is called.

Of classes it is one constant answer: the majority rate. Of multiple choice it is a guess, the mean of 1 / the
number of choices: a model that scores each choice for itself cannot answer by its place.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChanceWords:
    """Names of the rate, by where they are needed."""

    row: str
    """Of a line in tables and figures."""
    head: str
    """Of a narrow column."""
    rate: str
    """Of the number, in a sentence."""
    answer: str
    """Of who has it, in a sentence."""
    doing: str
    """Of what has it, in a caption."""


OF_CLASSES = ChanceWords(
    row="majority class",
    head="majority",
    rate="the majority rate",
    answer="the majority class",
    doing="always answering the most frequent class",
)
_OF_CHOICES = ChanceWords(
    row="guess among choices",
    head="guess",
    rate="the rate of a guess among the choices",
    answer="a guess among the choices",
    doing="guessing among the choices",
)
_OF_BOTH = ChanceWords(
    row="majority or guess",
    head="majority or guess",
    rate="the majority rate (of multiple choice that of a guess)",
    answer="the majority class or, of multiple choice, a guess",
    doing="always answering the most frequent class or, of multiple choice, guessing",
)


def chance_rate(majority: float | None, guess: float | None) -> float | None:
    """The accuracy of an answer without knowledge: of multiple choice a guess, else the majority rate."""
    return majority if guess is None else guess


def chance_words(rates: Iterable[tuple[float | None, float | None]]) -> ChanceWords | None:
    """The names that are true of these pairs of a majority rate and a guess; None if there is neither."""
    kinds = {guess is not None for majority, guess in rates if (majority, guess) != (None, None)}
    if not kinds:
        return None
    if len(kinds) > 1:
        return _OF_BOTH
    return _OF_CHOICES if kinds.pop() else OF_CLASSES
