"""Differences between two documents, in the words of a YAML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from permafrost.storage.quoting import LIMIT, visible

ABSENT = "(absent)"
"""The value of a field that one of two documents does not have."""
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Change:
    """One thing that differs from an earlier artifact."""

    text: str
    """As people read it: `GLOT: optim.lr 0.0002 -> 0.002`."""
    path: str
    """Of the field, or what else it is: `code`, `layers`, `texts`."""
    old: Any = None
    new: Any = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Leaf:
    """A field that differs; lists of plain values are one field."""

    path: str
    old: Any
    new: Any

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


def changed_leaves(old: object, new: object) -> list[Leaf]:
    """Fields in which two plain JSON documents differ, in the order of the newer one. Where a `kind` differs,
    fields that only one of both kinds has are left out."""
    before, after = dict(_leaves(old, "")), dict(_leaves(new, ""))
    found = [
        Leaf(path, before.get(path, ABSENT), after.get(path, ABSENT))
        for path in dict.fromkeys([*after, *before])
        if before.get(path, ABSENT) != after.get(path, ABSENT)
    ]
    sections = [leaf.path.removesuffix("kind") for leaf in found if leaf.name == "kind"]
    return [
        leaf
        for leaf in found
        if leaf.name == "kind"
        or ABSENT not in (leaf.old, leaf.new)
        or not any(leaf.path.startswith(section) for section in sections)
    ]


def _leaves(value: object, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        fields = cast(Mapping[str, object], value)
        parts = [_leaves(v, f"{path}.{k}" if path else k) for k, v in fields.items()]
    elif isinstance(value, list) and not all(isinstance(v, _SCALARS) for v in value):
        items = cast(Sequence[object], value)
        parts = [_leaves(v, f"{path}[{i}]") for i, v in enumerate(items)]
    else:
        return [(path, value)]
    return [leaf for part in parts for leaf in part]


def said(name: str, leaf: Leaf) -> Change:
    """A field that differs, below the name of what it is a field of; without one if that is empty."""
    subject = visible(f"{name}: {leaf.path}" if name else leaf.path)
    old, new = leaf.old, leaf.new
    if (more := _more(old, new)) is not None:
        text = f"{subject} {more} added"
    elif (fewer := _more(new, old)) is not None:
        text = f"{subject} {fewer} removed"
    elif old == ABSENT:
        text = f"{subject} {shown(new)} added"
    elif new == ABSENT:
        text = f"{subject} {shown(old)} removed"
    else:
        text = f"{subject} {shown(old)} -> {shown(new)}"
    return Change(text, leaf.path, old, new)


def _more(old: Any, new: Any) -> str | None:
    """What the newer of two lists has beyond the older one; None if that is not all."""
    if not isinstance(old, list) or not isinstance(new, list):
        return None
    before, after = cast(list[Any], old), cast(list[Any], new)
    added = [v for v in after if v not in before]
    if not added or [v for v in after if v in before] != before:
        return None
    return ", ".join(map(shown, added))


def shown(value: Any) -> str:
    """A value as YAML has it, on one line and not too long."""
    match value:
        case None:
            text = "null"
        case bool():
            text = str(value).lower()
        case str():
            text = visible(value) or "''"
        case list():
            text = f"[{', '.join(map(shown, cast(list[Any], value)))}]"
        case _:
            text = str(value)
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}…"


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
