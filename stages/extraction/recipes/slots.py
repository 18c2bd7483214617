"""Templates and the slots in them."""

from itertools import pairwise

from permafrost.storage.quoting import quoted

TEXT = "{text}"
FIRST = "{first}"
PLACEHOLDER_SLOT = "{placeholder}"


def require_slots(template: str, *slots: str) -> str:
    """The template, if it contains each slot once and in this order.

    Raises:
        ValueError: it does not; pydantic turns this into its own error.
    """
    for slot in slots:
        if template.count(slot) != 1:
            raise ValueError(
                f"{quoted(template)} contains {slot} {template.count(slot)} times; it has to contain it once"
            )
    for first, second in pairwise(slots):
        if template.index(first) > template.index(second):
            raise ValueError(
                f"{quoted(template)} has {first} after {second}; it has to come before it"
            )
    return template


def words_around(template: str, *slots: str) -> tuple[str, ...]:
    """The template's own words, split at its slots."""
    words = [template]
    for slot in slots:
        words += words.pop().split(slot)
    return tuple(words)
