"""Overrides of an experiment: what `--set path.to.field=value` puts in the place of what a file says."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Any

from pydantic import BaseModel

from permafrost.flows.experiment_files.wrong_fields import missing_entry
from permafrost.flows.experiment_files.yaml_reader import MAX_NESTING, read_yaml
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_SHARED = "x-"
"""Keys that begin so are no fields, but a place for what several fields share."""


def overridden(
    document: dict[str, Any], overrides: Sequence[str], config: type[BaseModel]
) -> dict[str, Any]:
    """The fields of a document with overrides put in, without its `x-` keys; aliases are copies.

    Args:
        document: as it was read; it is changed.
        overrides: `path.to.field=value` each. Those of `x-` keys come first, and change every place that
            refers to the mapping or list there.
        config: the class that the fields are for.

    Raises:
        InputError: an override has another form, names what is not there, or would change nothing.
    """
    is_shared = [override.startswith(_SHARED) for override in overrides]
    for override in compress(overrides, is_shared):
        _override_shared(document, override, config)
    document = _without_aliases(document)
    for override in compress(overrides, map(not_, is_shared)):
        _override(document, override, config)
    return _fields(document)


def _override(document: dict[str, Any], override: str, config: type[BaseModel]) -> None:
    dotted, text = _split(document, override)
    if not dotted:
        raise InputError(f"--set {quoted(override)} is not of the form path.to.field=value")
    at: Any = document
    parts, seen = dotted.split("."), list[str]()
    if len(parts) > MAX_NESTING:
        raise InputError(f"--set {quoted(override)} names a field {len(parts):,} names deep")
    while len(parts) > 1:
        # Names of tasks, methods and fields of a grid may contain dots: the longest existing name is used.
        lengths = range(len(parts), 0, -1)
        n = next((n for n in lengths if isinstance(at, dict) and ".".join(parts[:n]) in at), 1)
        if n == len(parts):
            parts = [".".join(parts)]
            break
        name, parts = ".".join(parts[:n]), parts[n:]
        seen.append(name)
        if why := missing_entry(config, document, seen):
            new = f"{'.'.join(seen)}={{field: value, ...}}"
            raise InputError(f"--set {quoted(override)}: {why}; a new one is given whole, '{new}'")
        at = at.setdefault(name, {}) if isinstance(at, dict) else at
        if not isinstance(at, dict):
            where = ".".join(seen)
            raise InputError(
                f"--set {quoted(override)}: {where} is {quoted(at)}, which has no field {quoted(parts[0])}"
            )
    old, new = at.get(parts[0]), read_yaml(text, f"the value of --set {quoted(override)}")
    at[parts[0]] = new
    if isinstance(old, dict | list):
        _replace(document, old, new)


def _split(document: Mapping[str, Any], override: str) -> tuple[str, str]:
    """The dotted name and the text of the value; an empty name if there is none.

    Names of methods and tasks may contain `=`, and so may values: it ends the longest name that exists.
    """
    ends = [i for i, character in enumerate(override) if character == "="]
    for end in reversed(ends[1:]):
        if _exists(document, override[:end]):
            return override[:end], override[end + 1 :]
    return (override[: ends[0]], override[ends[0] + 1 :]) if ends else ("", "")


def _exists(document: Mapping[str, Any], dotted: str) -> bool:
    """Whether every name with an `=` in it is one of the document; fields after it may be left out there."""
    at: Any = document
    while "=" in dotted:
        if not isinstance(at, dict):
            return False
        whole = f"{dotted}."
        fitting = [n for n in at if isinstance(n, str) and whole.startswith(f"{n}.")]
        if not fitting:
            return False
        name = max(fitting, key=len)
        at, dotted = at[name], dotted[len(name) + 1 :]
    return True


def require_no_grid_instead(fields: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse to set what a grid tries other values for.

    Args:
        fields: valid ones, overrides put in.
        overrides: as for `overridden`.

    Raises:
        InputError: an override changes nothing, because of a grid.
    """
    for where, grid in _grids(fields):
        for override in overrides:
            field, text = _split(fields, override)
            for tried, values in grid.items():
                if _is_inside(text, field, where, tried):
                    raise InputError(
                        f"--set {quoted(override)} sets {where}{tried}, in whose place {where}grid tries "
                        f"{quoted(values)}; set the other fields one by one, or {where}grid={{}} as well to "
                        "try nothing"
                    )
                if f"{field}.".startswith(f"{where}{tried}."):
                    raise InputError(
                        f"--set {quoted(override)} would change nothing, as {where}grid tries {tried} "
                        f"{quoted(values)} in its place; set {where}grid.{tried}=[VALUE, ...] instead, or "
                        f"{where}grid={{}} to try nothing"
                    )


def _is_inside(text: str, field: str, where: str, tried: str) -> bool:
    """Whether a mapping that is set as the `field` of what has a grid has the field that the grid tries."""
    if not (field.startswith(where) and f"{where}{tried}".startswith(f"{field}.")):
        return False  # a whole method comes with a grid of its own
    at = read_yaml(text, "the value of --set")
    for name in f"{where}{tried}".removeprefix(f"{field}.").split("."):
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return True


def _grids(within: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every grid, with the dotted name of what it belongs to and a dot."""
    for name, inner in within.items():
        if name == "grid" and isinstance(inner, dict):
            yield where, inner
        elif isinstance(inner, dict):
            yield from _grids(inner, f"{where}{name}.")


def _override_shared(document: dict[str, Any], override: str, config: type[BaseModel]) -> None:
    """As `_override`, inside an `x-` key. Raises: InputError: no field would change."""
    before = _without_aliases(document)
    _override(document, override, config)
    after = _without_aliases(document)
    if before != after and _fields(before) == _fields(after):
        shared = ", ".join(str(name) for name in before if str(name).startswith(_SHARED))
        raise InputError(
            f"--set {quoted(override)} would change nothing, as no field refers to it (there are "
            f"{shared or 'no such keys'}); single values, and those that << merges, are copies; name the "
            "field itself"
        )


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in document.items() if not str(name).startswith(_SHARED)}


def _replace(within: Any, old: Any, new: Any) -> None:
    """Put `new` wherever an alias has put the very mapping or list `old`."""
    places = within.items() if isinstance(within, dict) else enumerate(within)
    for name, value in list(places):
        if value is old:
            within[name] = new
        elif isinstance(value, dict | list) and value is not new:
            _replace(value, old, new)


def _without_aliases(value: Any) -> Any:
    """A copy in which no two places share a mapping or list."""
    if isinstance(value, dict):
        return {name: _without_aliases(one) for name, one in value.items()}
    return [_without_aliases(one) for one in value] if isinstance(value, list) else value
