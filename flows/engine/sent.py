"""A call as bytes, which a Dask scheduler passes on unread.

Of a function and its arguments it would read every one, and for that import what they are of: torch and all
that a stage needs, while its workers wait.
"""

import pickle
from collections.abc import Callable
from typing import Any


def sent(function: Callable[..., Any], *arguments: Any) -> bytes:
    """The call `function(*arguments)`.

    Args:
        function: importable wherever it is called.
        arguments: picklable.
    """
    return pickle.dumps((function, arguments), protocol=pickle.HIGHEST_PROTOCOL)


def call(this: bytes) -> Any:
    """What the call returns, or raises.

    A worker trusts its scheduler with this no more than with any task: Dask unpickles those by itself.
    """
    function, arguments = pickle.loads(this)
    return function(*arguments)
