"""Whether a loaded module is what its source says: after an edit without a reload, or a reload of one of two
modules, something else would run than keys name.

Functions and methods are compared by their compiled code. Values are not: another module may set them as it
is imported, and its code counts.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from permafrost.storage.errors import InputError
from permafrost.storage.source_facts import ALL, SourceFacts


def require_as_written(name: str, source: str) -> None:
    """Refuse a module that was edited after it was loaded; one that is not loaded passes.

    Loaders that rewrite a source as they load it are not compared.

    Raises:
        InputError: a function of the loaded module is none of the source's.
    """
    module = sys.modules.get(name)
    if module is None or type(getattr(module, "__loader__", None)) is not SourceFileLoader:
        return
    path = str(module.__file__)
    tree = ast.parse(source)
    written = _codes(compile(tree, path, "exec", dont_inherit=True))
    other = next((f for f in _functions(module, tree) if _differs(f, path, written)), None)
    if other is not None:
        raise InputError(
            f"{path} has another {other.__qualname__} than the one that runs: it was edited after it was "
            "loaded; reload it (importlib.reload) and register again what was registered, or start Python "
            "again"
        )


def require_bound(name: str, facts: SourceFacts) -> None:
    """Refuse a module that has something of another one from before that one was reloaded; one that is not
    loaded passes.

    Raises:
        InputError: an imported function or class is not the one that the other module has now.
    """
    module = sys.modules.get(name)
    if module is None:
        return
    for local, (target, inner) in _bindings(facts):
        other, mine = sys.modules.get(target), vars(module).get(local)
        theirs = None if other is None else vars(other).get(inner)
        if _is_again(mine, theirs):
            raise InputError(
                f"the module {name} has {local} from before {target} was reloaded, so keys would not say "
                f"what runs; reload {name} as well (importlib.reload), and register its classes again"
            )


def _is_again(mine: Any, theirs: Any) -> bool:
    """Whether two functions or classes are made by one definition, as a reload does; what something else put
    in its place is another thing."""
    if not all(is_class(one) or type(one) is FunctionType for one in (mine, theirs)):
        return False
    mine, theirs = _behind(mine), _behind(theirs)
    if mine is None or theirs is None or mine is theirs:
        return False
    return (mine.__module__, mine.__qualname__) == (theirs.__module__, theirs.__qualname__)


def _bindings(facts: SourceFacts) -> Iterator[tuple[str, tuple[str, str]]]:
    for local, targets in facts.imports.items():
        # A name that branches bind to several things, or that is bound again, may rightly be another one.
        if len(targets) != 1 or local in facts.definitions:
            continue
        target, inner = targets[0]
        if inner not in (None, ALL):
            yield local, (target, str(inner))


def _functions(module: ModuleType, tree: ast.Module) -> Iterator[Any]:
    """Functions that a module defines, and those of its classes; a reload leaves what is gone."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    written = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    places = [{name: value for name, value in vars(module).items() if name in written}]
    seen = set[int]()
    while places:
        for value in map(_behind, list(places.pop().values())):
            if value is None or value.__module__ != module.__name__:
                continue
            if isinstance(value, FunctionType):
                yield value
            elif id(value) not in seen:
                seen.add(id(value))
                places.append(dict(vars(value)))


def is_class(value: object) -> bool:
    """Whether a value is a class. `isinstance` asks the value, too, and a lazy one then imports what it
    stands for."""
    return issubclass(type(value), type)


def _behind(value: Any) -> type | FunctionType | None:
    """The function or class that a value of a module or class is, or is made of; of values of other types no
    attribute is asked for, as some import a module for it."""
    if type(value) is property:
        value = value.fget
    elif type(value) in (staticmethod, classmethod, MethodType):
        value = value.__func__
    seen = set[int]()
    while not is_class(value) and id(value) not in seen:
        seen.add(id(value))
        inner = inspect.getattr_static(value, "__wrapped__", None)
        if inner is None:
            break
        value = inner
    return value if is_class(value) or type(value) is FunctionType else None


def _codes(code: CodeType) -> dict[str, set[Any]]:
    """All that a module's code defines, by its dotted name."""
    found: dict[str, set[Any]] = {}
    left = [code]
    while left:
        one = left.pop()
        found.setdefault(one.co_qualname, set()).add(_signature(one))
        left.extend(inner for inner in one.co_consts if isinstance(inner, CodeType))
    return found


def _signature(code: CodeType) -> Any:
    """What runs, wherever it stands."""
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, _constant(code.co_consts), names, code.co_flags


def _constant(value: Any) -> Any:
    """Equal for what is the same constant; the order of a set depends on how it was made."""
    if isinstance(value, CodeType):
        return _signature(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, cast(tuple[Any, ...], value)))
    if isinstance(value, frozenset):
        return frozenset(map(_constant, cast(frozenset[Any], value)))
    return type(value).__name__, repr(value)


def _differs(function: Any, path: str, written: Mapping[str, set[Any]]) -> bool:
    code = function.__code__
    # What was made of a text, as dataclasses do, has no place in the file.
    return code.co_filename == path and _signature(code) not in written.get(code.co_qualname, set())
