"""Rows of a user's texts in messages about the different ones among them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from permafrost.stages.extraction.recipes.inputs import UnreadableTextError


@contextmanager
def numbered_by_row(sides: Sequence[Sequence[str]], unique: Sequence[str]) -> Iterator[None]:
    """An `UnreadableTextError` about one of the unique texts numbers it by its first row among all.

    Args:
        sides: the texts as they were given, of pairs the second ones after the first.
        unique: each of them once.
    """
    try:
        yield
    except UnreadableTextError as error:
        text = unique[error.number]
        row = next(i for i, one in enumerate(chain.from_iterable(sides)) if one == text)
        raise error.at(row) from error
