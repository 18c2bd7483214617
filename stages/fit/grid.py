"""Dotted names for the fields of a nested config, and replacing one of them."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import JsonValue

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every leaf with its dotted name, in order."""
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{prefix}{name}.")
        else:
            pairs.append((prefix + name, value))
    return pairs


def replaced(tree: dict[str, Any], field: str, value: JsonValue) -> dict[str, Any]:
    """A copy of the tree with one existing field changed.

    Raises:
        InputError: there is no such field.
    """
    copy = dict(tree)
    branch = copy
    *path, last = field.split(".")
    for name in path:
        inner = branch.get(name)
        if not isinstance(inner, dict):
            raise _unknown(tree, field)
        branch[name] = dict(inner)
        branch = branch[name]
    if last not in branch:
        raise _unknown(tree, field)
    branch[last] = value
    return copy


def _unknown(tree: dict[str, Any], field: str) -> InputError:
    names = [name for name, _ in flat(tree)]
    groups = [name for name, value in tree.items() if isinstance(value, dict)]
    known = sorted(names + groups)
    near = "".join(f"; the nearest is {quoted(one)}" for one in get_close_matches(field, known, 1))
    return InputError(
        f"grid names the field {quoted(field)}, which a fit does not have{near}; it has {', '.join(known)}"
    )
