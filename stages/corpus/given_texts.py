"""Texts as people give them in Python."""

from collections.abc import Iterable, Mapping
from typing import cast

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def listed(texts: object, what: str) -> list[str]:
    """The texts of a list, a column, a generator, ...: at least one.

    Args:
        texts: read once.
        what: is done with them, for messages: `encode`.

    Raises:
        InputError: they are one text, a table, a set, none, or not all of them are texts.
    """
    if isinstance(texts, str):
        raise InputError(
            f"{what} was given the text {quoted(texts)} where a list of texts belongs; write [text]"
        )
    require_no_table(texts)
    if not isinstance(texts, Iterable):
        raise InputError(
            f"{what} was given {quoted(texts)}, of type {type(texts).__name__}, where a list of texts belongs"
        )
    rows = list(cast(Iterable[object], texts))
    if not rows:
        raise InputError(f"there are no texts to {what}; give at least one")
    for i, text in enumerate(rows):
        if not isinstance(text, str):
            raise InputError(
                f"text {i} is {quoted(text)}, of type {type(text).__name__}; give Python strings"
            )
        require_unicode(text, f"text {i}")
    return cast(list[str], rows)


def require_no_table(texts: object) -> None:
    """Check that texts were given and no table of them, of which Python lists the names of the columns.

    Raises:
        InputError: it is a data frame, a dataset or a mapping; or a set, which has no order.
    """
    if isinstance(texts, Mapping):
        names = cast(Mapping[object, object], texts)
    elif (names := getattr(texts, "column_names", getattr(texts, "columns", None))) is None:
        if isinstance(texts, set | frozenset):
            raise InputError("the texts are a set, which has no order; give a list of strings")
        return
    column = next(map(str, names), "NAME") if isinstance(names, Iterable) else "NAME"
    raise InputError(
        f"the texts are a {type(texts).__name__} with columns, and no list of strings; name the column: "
        f"list(data[{column!r}])"
    )


def require_unicode(text: str, where: str) -> None:
    """Check that a text can be written; raises InputError if it has half of a surrogate pair."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} is {quoted(text)}, whose character {error.start} is half of a surrogate pair and no "
            "text; decode it again, or take it out"
        ) from error
