"""Source text as a syntax tree, from several threads."""

import ast
import threading

_ONE_AT_A_TIME = threading.RLock()
_TRIES = 10


def syntax_tree(source: str) -> ast.Module:
    """As `ast.parse`, of which Python 3.11 and 3.12 count the depth for all threads together: where garbage
    collection lets another thread parse meanwhile, a correct text ends in a SystemError.

    Ours wait for each other, and one that met another library's is done again.

    Raises:
        SyntaxError: it is no Python.
    """
    with _ONE_AT_A_TIME:
        for _ in range(_TRIES - 1):
            try:
                return ast.parse(source)
            except SystemError:
                continue
        return ast.parse(source)
