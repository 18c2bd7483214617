"""How signatures are checked in tests: beartype, taking an int where a float is asked for (PEP 484).

The check of a function is compiled when it is first called: a test process calls a part of all functions, and
compiling all checks takes seconds. A test's first calls are checked and the rest of them are not: loops of
training call the same functions time and again, and to check each call took half of the time of the tests.
"""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import config

CHECKED_CALLS = 100
"""In each test. A call is checked before and, with its result, after."""

_compiled = beartype(conf=BeartypeConf(is_pep484_tower=True))
_left = CHECKED_CALLS


def check_the_next_calls() -> None:
    """A test begins."""
    global _left
    _left = CHECKED_CALLS
    config.update("jaxtyping_disable", False)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises where an argument or a result is not what its signature says."""
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def checked_when_called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        global _left
        _left -= 1
        if _left < 0:
            config.update("jaxtyping_disable", True)
        if checked is None:
            checked = _compiled(function)
        return checked(*args, **kwargs)

    return checked_when_called
