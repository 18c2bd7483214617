"""The candidates of a grid: one fit for every combination of its values."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.grid import replaced
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Grid = Mapping[str, Sequence[JsonValue]]
"""Dotted field of a fit to the values to try, for example `{"layer": ["hidden/1"], "head.tau": [0.3]}`."""


NOT_CHOSEN = {
    "labels": "and a fit on shuffled ones is a control that dev may not choose; give each value a method of "
    "its own",
    "seed": "and the luckiest on dev would stand for all; give 'seeds' to the experiment, whose scores "
    "are averaged",
    "metric": "and numbers of different metrics cannot be compared on dev; give each metric a method of its "
    "own",
}
"""Fields of a fit that no grid may try, and why."""

C = TypeVar("C", bound=BaseModel)


def candidates(config: FitConfig, grid: Grid) -> dict[str, FitConfig]:
    """Every combination of a grid; without a grid `config` alone, labelled "". `grid_patience` does not apply
    to the first candidate. Raises as `combinations`."""
    return combinations(FitConfig, config.model_dump(mode="json"), grid, {"grid_patience": None})


def combinations(
    kind: type[C], plain: Mapping[str, Any], grid: Grid, first: Mapping[str, Any]
) -> dict[str, C]:
    """Every combination of a grid, by a label of its values; "" without a grid.

    Fields vary in alphabetical order, the last one fastest, so that two spellings of the same grid agree on
    which candidate comes first.

    Args:
        kind: of the fit's config.
        plain: all its fields, as JSON has them.
        grid: what is tried.
        first: fields that the first candidate has otherwise, whatever the grid.

    Raises:
        InputError: a field does not exist, has no values to try, or refuses one; or it is one that dev
            cannot choose (`NOT_CHOSEN`).
    """
    for field, why in NOT_CHOSEN.items():
        if field in grid:
            raise InputError(f"grid tries {field}, {why}")
    fields = sorted(grid)
    for field in fields:
        if not grid[field]:
            raise InputError(f"grid.{field} has no values; give at least one or remove it")
    configs: dict[str, C] = {}
    for values in itertools.product(*(grid[field] for field in fields)):
        changed: dict[str, Any] = dict(plain) if configs else {**plain, **first}
        for field, value in zip(fields, values, strict=True):
            changed = replaced(changed, field, value)
        try:
            candidate = kind.model_validate(changed)
        except ValidationError as error:
            found = error.errors()[0]
            tried = ", ".join(f"{f}={quoted(v)}" for f, v in zip(fields, values, strict=True))
            where = ".".join(str(part) for part in found["loc"])
            raise InputError(
                f"the grid's candidate {tried} is not valid at {where}: "
                f"{found['msg'].removeprefix('Value error, ')}"
            ) from error
        name = ", ".join(f"{f} {_as_text(v)}" for f, v in zip(fields, values, strict=True))
        configs.setdefault(name, candidate)
    return configs


def arrays(candidates: Mapping[str, FitConfig]) -> tuple[str, ...]:
    """Every array that a candidate reads, in order of first use."""
    return tuple(dict.fromkeys(candidate.layer for candidate in candidates.values()))


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
