"""Editing a kind as far as keys can see, without touching its file."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator

import pytest

from permafrost.storage import fingerprint


@pytest.fixture
def edit() -> Iterator[Callable[[type], None]]:
    """Adds a line to a class, as far as keys can see."""
    modules = set[str]()

    def add(cls: type) -> None:
        modules.add(cls.__module__)
        fingerprint.use_source(cls.__module__, edited(cls))

    yield add
    for name in modules:
        fingerprint.use_source(name, inspect.getsource(importlib.import_module(name)))


def edited(cls: type) -> str:
    """The source of a kind's module with one more line in the class."""
    source = inspect.getsource(importlib.import_module(cls.__module__))
    (found,) = [
        n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == cls.__name__
    ]
    lines = source.splitlines()
    lines.insert(found.end_lineno or 0, "    _edited = 1")
    return "\n".join(lines) + "\n"
