"""Which of several names somebody may have meant by one that is unknown."""

from collections.abc import Iterable

from permafrost.storage.quoting import quoted


def near(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like another one, if any is."""
    # Imported here, as only a message needs it.
    from difflib import get_close_matches

    lower = {known.casefold(): known for known in names}
    found = get_close_matches(name.casefold(), lower, 1, 0.55)
    return lower[found[0]] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """`; the nearest is 'train'`, for a message; empty if none is like it."""
    found = near(name, names)
    return "" if found is None else f"; the nearest is {quoted(found)}"
