"""Overrides of an experiment: what `--set path.to.field=value` puts in the place of what a file says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from permafrost.flows.experiment_files.yaml_reader import MAX_NESTING, Merging, read_yaml
from permafrost.stages.wrong_fields import missing_entry
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_SHARED = "x-"
"""Keys that begin so are no fields, but a place for what several fields share."""


@dataclass(frozen=True)
class Overridden:
    """An experiment with overrides put in."""

    fields: dict[str, Any]
    """Without `x-` keys; aliases are copies."""
    changed: dict[str, list[str]]
    """The dotted names of the fields that each override inside an `x-` key changed."""


def overridden(
    document: dict[str, Any], overrides: Sequence[str], config: type[BaseModel]
) -> Overridden:
    """The fields of a document with overrides put in.

    Args:
        document: as it was read; it is changed.
        overrides: `path.to.field=value` each. Those of `x-` keys come first, and change every place that
            refers to the mapping or list there, or merges it without a field of its own of that name.
        config: the class that the fields are for.

    Raises:
        InputError: an override has another form, names what is not there, or would change nothing.
    """
    changed: dict[str, list[str]] = {}
    for override in overrides:
        if override.startswith(_SHARED):
            changed.setdefault(override, []).extend(_override_shared(document, override, config))
    document = _without_aliases(document)
    for override in overrides:
        if override not in changed:
            _override(document, override, config)
    return Overridden(_fields(document), changed)


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
        if isinstance(at, dict) and any(str(k) == name and k != name for k in at):
            raise InputError(
                f"--set {quoted(override)}: {'.'.join(seen)} is no text in the file, and "
                f"names are; write '{name}', with quotation marks, there"
            )
        if why := missing_entry(config, document, seen):
            new = f"'{'.'.join(seen)}={{field: value, ...}}', by a name without dots"
            raise InputError(f"--set {quoted(override)}: {why}; a new one is given whole, {new}")
        if isinstance(at, dict):
            if name not in at:
                _put(at, name, {})
            at = at[name]
        if not isinstance(at, dict):
            where = ".".join(seen)
            raise InputError(
                f"--set {quoted(override)}: {where} is {quoted(at)}, which has no field {quoted(parts[0])}"
            )
    old, new = at.get(parts[0]), read_yaml(text, f"the value of --set {quoted(override)}")
    _put(at, parts[0], new)
    if isinstance(old, dict | list):
        _replace(document, old, new)


def _put(at: dict[str, Any], name: str, value: Any) -> None:
    at[name] = value
    if isinstance(at, Merging):
        at.own.add(name)


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


def require_no_grid_instead(
    fields: Mapping[str, Any], overrides: Sequence[str], changed: Mapping[str, Sequence[str]]
) -> None:
    """Refuse to set what a grid tries other values for.

    Args:
        fields: valid ones, overrides put in.
        overrides: as for `overridden`.
        changed: see `Overridden`.

    Raises:
        InputError: an override changes nothing, because of a grid.
    """
    grids = list(_grids(fields))
    for override in overrides:
        if override in changed:
            _require_change(override, changed[override], grids)
            continue
        field, text = _split(fields, override)
        for where, grid in grids:
            for tried, values in grid.items():
                if _is_inside(text, field, where, tried):
                    raise InputError(
                        f"--set {quoted(override)} sets {where}{tried}, in whose place {where}grid tries "
                        f"{quoted(values)}; set the other fields one by one, or {where}grid={{}} as well to "
                        "try nothing"
                    )
        _require_change(override, [field], grids)


def _require_change(
    override: str, names: Sequence[str], grids: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Raises: InputError: grids try other values in the place of all of these fields."""
    instead = [
        next(
            (
                (where, tried, values)
                for where, grid in grids
                for tried, values in grid.items()
                if f"{name}.".startswith(f"{where}{tried}.")
            ),
            None,
        )
        for name in names
    ]
    if instead and instead[0] is not None and None not in instead:
        where, tried, values = instead[0]
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


def _override_shared(document: dict[str, Any], override: str, config: type[BaseModel]) -> list[str]:
    """As `_override`, inside an `x-` key.

    Returns:
        The dotted names of the fields that changed.

    Raises:
        InputError: no field would change.
    """
    before = _without_aliases(document)
    _override(document, override, config)
    try:
        _merge_again(document, set())
    except InputError as error:
        raise InputError(f"--set {quoted(override)}: {error}") from error
    after = _without_aliases(document)
    changed = list(_differing(_fields(before), _fields(after), ""))
    if before != after and not changed:
        shared = ", ".join(str(name) for name in before if str(name).startswith(_SHARED))
        raise InputError(
            f"--set {quoted(override)} would change nothing, as no field refers to it (there are "
            f"{shared or 'no such keys'}); single values are copies, and fields beside a << win over those "
            "that it merges; name the field itself"
        )
    return changed


def _merge_again(value: Any, done: set[int]) -> None:
    """Give every mapping with a merge key the fields that those which it merges have now."""
    if id(value) in done or not isinstance(value, dict | list):
        return
    done.add(id(value))
    if isinstance(value, Merging):
        _merge_again(value.merged, done)
        value.merge()
    for one in value.values() if isinstance(value, dict) else value:
        _merge_again(one, done)


def _differing(before: Any, after: Any, name: str) -> Iterator[str]:
    """The dotted names of the values that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            dotted = f"{name}.{key}" if name else str(key)
            if key in before and key in after:
                yield from _differing(before[key], after[key], dotted)
            else:
                yield dotted
    elif before is not after and before != after:  # not a number is no other one
        yield name


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
    if isinstance(within, Merging):
        if within.merged is old:
            within.merged = new
        elif within.merged is not new:
            _replace(within.merged, old, new)


def _without_aliases(value: Any) -> Any:
    """A copy in which no two places share a mapping or list."""
    if isinstance(value, dict):
        return {name: _without_aliases(one) for name, one in value.items()}
    return [_without_aliases(one) for one in value] if isinstance(value, list) else value
