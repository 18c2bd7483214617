"""Names that a module gives without importing what defines them until they are asked for.

For what a package offers in one place, and for names that plug-ins import from beside a kind's base class:
importing all that defines them takes seconds, most of it torch.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from permafrost.storage.syntax_trees import syntax_tree


def late_names(module: str) -> Callable[[str], Any]:
    """What a module binds as its `__getattr__`: gives the names that it imports under `TYPE_CHECKING`, where
    readers of types and fingerprints find them too.

    Args:
        module: its name.
    """

    def getattr_late(name: str) -> Any:
        if name.startswith("__") or (found := _imported(module).get(name)) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, defined = found
        value = getattr(import_module(where), defined)
        setattr(sys.modules[module], name, value)
        return value

    return getattr_late


@cache
def _imported(module: str) -> Mapping[str, tuple[str, str]]:
    """By name the module that defines it, and its name there."""
    path = sys.modules[module].__file__
    assert path is not None, f"{module} has no source"
    found: dict[str, tuple[str, str]] = {}
    for statement in syntax_tree(Path(path).read_text(encoding="utf-8")).body:
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                for one in body:
                    if isinstance(one, ast.ImportFrom) and one.module:
                        found |= {a.asname or a.name: (one.module, a.name) for a in one.names}
            case _:
                pass
    return found
