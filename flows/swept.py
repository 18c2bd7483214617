"""Curves of an experiment's methods over a setting, for a report whose axis is one."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from permafrost.flows.experiment import Experiment
from permafrost.flows.nodes.reporting import CurveEntry
from permafrost.stages.extraction.recipes import Recipe, resolve_recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json
from permafrost.storage.quoting import quoted

_RECIPE_FIELDS = ("recipe", "query", "document")
"""Fields of methods that name a recipe."""
_MOST_NAMED = 8


def swept_curves(experiment: Experiment, sizes: BackboneSizes) -> tuple[CurveEntry, ...]:
    """The curves that the report's axis asks for, in the order of its fields and then of the methods; none
    for other axes.

    Args:
        experiment: with its layers named by numbers.
        sizes: of its backbone.

    Raises:
        InputError: no two methods differ in a field alone, or a value has no place on the axis.
    """
    axis = experiment.report.x_axis
    if not axis.fields:
        return ()
    named = _Named(experiment, sizes)
    settings = {name: named.settings(name) for name in experiment.methods}
    curves: list[CurveEntry] = []
    for field in axis.fields:
        groups = _groups(field, settings)
        if not groups:
            others = [p for p in _varied(settings) if p != field]
            raise InputError(
                f"report.x_axis.fields names {quoted(field)}, but no two methods differ in that alone, as a "
                f"number; numbers in which methods differ are {', '.join(others[:_MOST_NAMED]) or 'none'}"
            )
        taken = {c.name for c in curves} | experiment.methods.keys()
        for values in groups:
            curves.append(CurveEntry(name=_name(field, tuple(values), taken), values=values))
            taken.add(curves[-1].name)
    for method, value in ((m, x) for c in curves for m, x in c.values.items()):
        axis.require_place(value, method)
    return tuple(curves)


class _Named:
    """Methods with what they name in the place of its name."""

    def __init__(self, experiment: Experiment, sizes: BackboneSizes) -> None:
        self._experiment, self._sizes = experiment, sizes

    def settings(self, method: str) -> dict[str, Any]:
        """Plain fields of a method."""
        found = self._experiment.methods[method]
        return {
            field: self._with_named(field, value, found.read_methods)
            for field, value in found.model_dump(mode="json").items()
        }

    def _with_named(self, field: str, value: Any, read: Sequence[str]) -> Any:
        if isinstance(value, dict):
            return {f: self._with_named(f, v, read) for f, v in value.items()}
        if isinstance(value, str) and value in read:
            return self.settings(value)
        if field in _RECIPE_FIELDS and value in self._experiment.all_recipes:
            return self._resolved(self._experiment.all_recipes[value])
        return value

    def _resolved(self, recipe: Recipe) -> dict[str, Any]:
        """A recipe with `auto` as a number; an ensemble as it is written."""
        is_one = len(recipe.members()) == 1
        one = resolve_recipe(recipe.members()[0], self._sizes) if is_one else recipe
        return one.model_dump(mode="json")


def _groups(field: str, settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, float]]:
    """Methods that are equal but for a field, each with its number there, where those are two or more."""
    groups: dict[bytes, dict[str, float]] = {}
    for name, fields in settings.items():
        number = _number(_at(fields, field.split(".")))
        if number is not None:
            rest = canonical_json(_without(fields, field.split(".")))
            groups.setdefault(rest, {})[name] = number
    several = (values for values in groups.values() if len(set(values.values())) > 1)
    return [dict(sorted(values.items(), key=lambda pair: pair[1])) for values in several]


def _at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _without(fields: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {name: value for name, value in fields.items() if name != first}
    return {**fields, first: _without(fields[first], rest)}


def _number(value: Any) -> float | None:
    """A number, also where a field has it as text, as `layers: "3"`, or as a list of one; None for anything
    else."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _varied(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Paths of the numbers in which methods differ."""
    found: dict[str, set[float]] = {}
    for fields in settings.values():
        for path, number in _numbers(fields):
            found.setdefault(path, set()).add(number)
    return [path for path, numbers in found.items() if len(numbers) > 1]


def _numbers(fields: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif (number := _number(value)) is not None:
            yield f"{above}{name}", number


def _name(field: str, methods: Sequence[str], taken: set[str]) -> str:
    """The words with which the names of most methods of a curve begin, or else its field."""
    for name in (_begun(methods), field, f"{field} of {methods[0]}"):
        if name and name not in taken:
            return name
    return f"{field}, {len(taken)}"


def _begun(names: Sequence[str]) -> str:
    words = [name.split() for name in names]
    for n in range(max(map(len, words)), 0, -1):
        (begun, n_names), *_ = Counter(tuple(w[:n]) for w in words).most_common(1)
        if 2 * n_names > len(names):
            return " ".join(begun).rstrip(" ,:;=")
    return ""
