"""In what two experiments differ, field by field, in the words of the experiment file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from permafrost.flows.grid_points import leaves
from permafrost.storage.quoting import quoted

ABSENT = "absent"


@dataclass(frozen=True)
class ConfigChange:
    """A field that is not the same on both sides."""

    field: str
    """`methods.GLOT.head.tau`."""
    a: str
    """In JSON; `absent` where there is no such field."""
    b: str

    def __str__(self) -> str:
        return self.between("A", "B")

    def between(self, a: str, b: str) -> str:
        """In words, with what the sides are called."""
        return f"{self.field}: {_short(self.a)} in {a}, {_short(self.b)} in {b}"


def config_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ConfigChange]:
    """The fields in which b differs from a, in the order of the files."""
    before, after = _filled(a), _filled(b)
    return [
        ConfigChange(field, _written(before, field), _written(after, field))
        for field in dict.fromkeys((*before, *after))
        if _written(before, field) != _written(after, field)
    ]


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every field by its dotted name. A mapping without fields is none: those of the other side are told."""
    return {field: value for field, value in leaves(config) if value != {}}


def _written(fields: Mapping[str, Any], field: str) -> str:
    return json.dumps(fields[field], ensure_ascii=False) if field in fields else ABSENT


def _short(text: str) -> str:
    return text if len(text) <= 100 else quoted(text)
