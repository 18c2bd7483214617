"""Arrays of a store by names or patterns of them."""

import fnmatch
from collections.abc import Sequence
from typing import Any, cast

from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.quoting import quoted

EVERY_ARRAY = "*"


def patterns_of(arrays: object) -> tuple[str, ...]:
    """Names of arrays, or patterns of them, from what a person gives: `hidden/3,values/*`, or several texts.

    Raises:
        InputError: it is neither.
    """
    given = arrays.split(",") if isinstance(arrays, str) else arrays
    names = cast("Sequence[Any]", given) if isinstance(given, list | tuple) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"arrays is {quoted(arrays)}; give names of arrays, or patterns of them: 'hidden/3', "
            "['hidden/*', 'values/3']"
        )
    return tuple(stripped for name in names if (stripped := name.strip()))


def named_arrays(there: Sequence[str], patterns: Sequence[str], store_id: str) -> tuple[str, ...]:
    """The arrays that any of the patterns names, in their own order.

    Args:
        there: names to choose from.
        patterns: names, or patterns of them: `hidden/*`. Every one has to fit, but `*` on an empty store.
        store_id: for the message.

    Raises:
        NotFoundError: a pattern fits none.
    """
    named = {pattern: fnmatch.filter(there, pattern) for pattern in patterns}
    for pattern, found in named.items():
        if not found and pattern != EVERY_ARRAY:
            raise NotFoundError(
                f"no array of the store {store_id[:12]} is called {quoted(pattern)}; there are "
                f"{', '.join(there) or 'none'}"
            )
    wanted = set[str]().union(*named.values())
    return tuple(name for name in there if name in wanted)
