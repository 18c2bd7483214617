"""How signatures are checked in tests: beartype, taking an int where a float is asked for (PEP 484).

The check of a function is compiled when it is first called: a test process calls a part of all functions, and
compiling all checks takes seconds.
"""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_compiled = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises where an argument or a result is not what its signature says."""
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def checked_when_called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = _compiled(function)
        return checked(*args, **kwargs)

    return checked_when_called
