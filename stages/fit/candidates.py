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
    """Every combination of a grid, by a label of its values; without a grid `config` alone, labelled "".

    Fields vary in alphabetical order, the last one fastest, so that two spellings of the same grid agree on
    which candidate comes first. `grid_patience` does not apply to the first candidate.

    Raises:
        InputError: a field does not exist, has no values to try, or refuses one.
    """
    plain = config.model_dump(mode="json")
    fields = sorted(grid)
    for field in fields:
        if not grid[field]:
            raise InputError(f"grid.{field} has no values; give at least one or remove it")
    configs: dict[str, FitConfig] = {}
    for values in itertools.product(*(grid[field] for field in fields)):
        changed: dict[str, Any] = plain if configs else plain | {"grid_patience": None}
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
        name = ", ".join(f"{f} {_as_text(v)}" for f, v in zip(fields, values, strict=True))
        configs.setdefault(name, candidate)
    return configs


def arrays(candidates: Mapping[str, FitConfig]) -> tuple[str, ...]:
    """Every array that a candidate reads, in order of first use."""
    return tuple(dict.fromkeys(candidate.layer for candidate in candidates.values()))


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
