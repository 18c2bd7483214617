"""What a fit is: a head, its data and how it is trained, and the grid it chooses from on dev."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from stages.heads import HeadConfig
from storage.errors import InputError


class OptimConfig(BaseModel):
    """How a head is trained. The defaults are GLOT's (section 4.1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=2e-4, gt=0, allow_inf_nan=False)
    """Learning rate, constant."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=32, ge=1)
    """Texts per step."""
    max_epochs: int = Field(default=2, ge=1)
    """Passes over train; the epoch that is kept is chosen on dev."""


class FitConfig(BaseModel):
    """One head on one stored array, or a grid of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head: HeadConfig
    layer: str = "hidden/6"
    """The stored array that the head reads."""
    optim: OptimConfig = OptimConfig()
    seed: int = Field(ge=0)
    """Initial weights, order of the batches, and the permutation of `labels="shuffled"`."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is the control: the labels of train and of dev are permuted, test is untouched."""
    metric: Literal["accuracy", "mcc", "f1"] = "accuracy"
    """What is compared on dev and reported. `f1` is that of class 1 of two."""
    grid: dict[str, tuple[JsonValue, ...]] = {}
    """Dotted field to the values to try, for example `{"layer": ["hidden/1"], "head.tau": [0.3]}`."""

    def candidates(self) -> tuple["FitConfig", ...]:
        """Every combination of the grid, without a grid of its own; this config when there is none.

        Combinations are numbered with the fields in alphabetical order, the last one fastest, so
        that two spellings of one grid agree on which candidate comes first.

        Raises:
            InputError: a field that does not exist, no values, or a value the field refuses.
        """
        plain = self.model_dump(mode="json", exclude={"grid"})
        fields = sorted(self.grid)
        for field in fields:
            if not self.grid[field]:
                raise InputError(f"grid.{field} has no values; give at least one or remove it")
        found: list[FitConfig] = []
        for values in itertools.product(*(self.grid[field] for field in fields)):
            changed: dict[str, Any] = plain
            for field, value in zip(fields, values, strict=True):
                changed = _replaced(changed, field, value)
            try:
                found.append(FitConfig.model_validate(changed))
            except ValidationError as error:
                first = error.errors()[0]
                tried = ", ".join(f"{f}={v!r}" for f, v in zip(fields, values, strict=True))
                where = ".".join(str(part) for part in first["loc"])
                raise InputError(
                    f"the grid's candidate {tried} is not valid at {where}: {first['msg']}"
                ) from error
        return tuple(found)

    def arrays(self) -> tuple[str, ...]:
        """Every array that a candidate reads, in order of first use."""
        return tuple(dict.fromkeys(candidate.layer for candidate in self.candidates()))

    def choice(self) -> dict[str, JsonValue]:
        """Layer and head settings by dotted name, for tables."""
        plain = self.model_dump(mode="json", exclude={"grid"})
        return {"layer": self.layer} | {
            name: value for name, value in _flat(plain) if name.startswith(("head.", "optim."))
        }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((prefix + name, value))
    return pairs


def _replaced(tree: dict[str, Any], field: str, value: JsonValue) -> dict[str, Any]:
    """A copy of the tree with one existing field changed."""
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
    names = [name for name, _ in _flat(tree)]
    groups = [name for name, value in tree.items() if isinstance(value, dict)]
    return InputError(
        f"grid names the field {field!r}, which this fit does not have; it has "
        f"{', '.join(sorted(names + groups))}"
    )
