"""The candidates of a grid: one fit for every combination of its values."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.grid import replaced
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Grid = Mapping[str, Sequence[JsonValue]]
"""Dotted field of a fit to the values to try, for example `{"layer": ["hidden/1"], "head.tau": [0.3]}`."""


def candidates(config: FitConfig, grid: Grid) -> dict[str, FitConfig]:
    """Every combination of a grid by what tells it from the others; `config` itself, under "", without one.

    Combinations come with the fields in alphabetical order, the last one fastest, so that two spellings of
    one grid agree on which candidate comes first. `grid_patience` means nothing to the first one.

    Raises:
        InputError: a field that does not exist, no values, or a value the field refuses.
    """
    plain = config.model_dump(mode="json")
    fields = sorted(grid)
    for field in fields:
        if not grid[field]:
            raise InputError(f"grid.{field} has no values; give at least one or remove it")
    found: dict[str, FitConfig] = {}
    for values in itertools.product(*(grid[field] for field in fields)):
        changed: dict[str, Any] = plain if found else plain | {"grid_patience": None}
        for field, value in zip(fields, values, strict=True):
            changed = replaced(changed, field, value)
        try:
            candidate = FitConfig.model_validate(changed)
        except ValidationError as error:
            first = error.errors()[0]
            tried = ", ".join(f"{f}={quoted(v)}" for f, v in zip(fields, values, strict=True))
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"the grid's candidate {tried} is not valid at {where}: {first['msg']}"
            ) from error
        name = ", ".join(f"{f} {_written(v)}" for f, v in zip(fields, values, strict=True))
        found.setdefault(name, candidate)
    return found


def arrays(candidates: Mapping[str, FitConfig]) -> tuple[str, ...]:
    """Every array that a candidate reads, in order of first use."""
    return tuple(dict.fromkeys(candidate.layer for candidate in candidates.values()))


def _written(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
