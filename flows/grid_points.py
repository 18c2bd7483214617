"""What tells the candidates of a grid apart, in the words of the experiment file."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_OF_THE_ORDER = ("grid_patience",)
"""Fields that the first candidate has otherwise, whatever the grid."""


def grid_points(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each candidate the fields in which they differ, `layer hidden/6, optim.lr 0.01`; "" if there is
    only one."""
    flat = [dict(leaves(config)) for config in configs]
    fields = sorted({field for one in flat for field in one} - {*_OF_THE_ORDER})
    differing = [f for f in fields if len({_text(one.get(f)) for one in flat}) > 1]
    return [", ".join(f"{f} {_text(one[f])}" for f in differing if f in one) for one in flat]


def leaves(value: Mapping[str, Any], where: str = "") -> list[tuple[str, Any]]:
    """Every field of a config that holds no further fields, by its dotted name."""
    found: list[tuple[str, Any]] = []
    for name, one in value.items():
        path = f"{where}.{name}" if where else name
        found += leaves(one, path) if isinstance(one, Mapping) and one else [(path, one)]
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
