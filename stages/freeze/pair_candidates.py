"""The candidates of a grid of pair heads."""

from typing import Any, TypeVar

from pydantic import BaseModel

from permafrost.stages.fit.candidates import Grid, combinations
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.storage.errors import InputError
from permafrost.storage.keys import to_plain

C = TypeVar("C", bound=PairFitConfig)


def pair_candidates(config: C, grid: Grid) -> dict[str, C]:
    """Every combination of a grid, by a label of its values; without a grid `config` alone, labelled "".

    Raises:
        InputError: a field does not exist, has no values to try, refuses one, or is the kind of the head, or
            says what labels or scores are kept.
    """
    if kinds := {"head", "head.kind"} & {*grid}:
        raise InputError(
            f"grid tries {min(kinds)}, but a method has one kind of head on every layer; give each kind a "
            "method of its own"
        )
    if "test_by_epoch" in grid:
        raise InputError(
            "grid tries test_by_epoch, which changes no fit; set it in a method of its own, beside that with "
            "the grid"
        )
    return combinations(type(config), _whole(config), grid, {})


def _whole(config: BaseModel) -> dict[str, Any]:
    """All fields, also those that are not written at their defaults."""
    plain = config.model_dump(mode="json")
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel) and isinstance(plain.get(name), dict):
            plain[name] = _whole(value)
        else:
            plain.setdefault(name, to_plain(value))
    return plain
