"""Readable messages for pydantic's validation errors, with each field by its path as it was given."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from permafrost.stages.kinds import kind_choice
from permafrost.storage.nearest import near, nearest
from permafrost.storage.quoting import LIMIT, quoted, visible

_LISTED = 10
_NAMES = 30
"""Names that a message lists, at most."""


def wrong_fields(
    error: ValidationError, config: type[BaseModel], given: object, separator: str = "\n  "
) -> str:
    """Path, reason and value of the first wrong fields.

    Args:
        error: what pydantic raised.
        config: the class that was validated.
        given: its fields as they were given, in which paths are looked up.
        separator: between two fields.
    """
    errors = field_errors(error)
    lines = [_line(e, config, given) for e in errors[:_LISTED]]
    if len(errors) > _LISTED:
        lines.append(f"and {len(errors) - _LISTED:,} more")
    if _is_of_plugins(errors[0]):
        lines.append(
            "the other fields are checked once the plug-ins are loaded, as they may use their kinds"
        )
    return separator.join(dict.fromkeys(lines))


def field_errors(error: ValidationError) -> list[ErrorDetails]:
    """The errors of single fields, without those that say of a list whose items are wrong that it is too
    short; where plug-ins are not in use, theirs alone, as any other field may name a kind of theirs."""
    errors = [
        e
        for e in error.errors(include_url=False)
        if not (e["type"] == "too_short" and len(e["input"]) >= e.get("ctx", {})["min_length"])
    ]
    return [e for e in errors if _is_of_plugins(e)] or errors


def _is_of_plugins(error: ErrorDetails) -> bool:
    return error["loc"][:1] == ("plugins",)


def booleans_for_numbers(config: BaseModel, given: object) -> list[str]:
    """The fields where true or false was given and pydantic took it for 1 or 0.

    Args:
        config: what the fields came to.
        given: its fields as they were given.
    """
    return [
        f"{_cut('.'.join(map(_cut, path)), 4 * LIMIT)}: expected a number (given: {str(value).lower()})"
        for path, value in _booleans_for_numbers(config, given, ())
    ][:_LISTED]


def _booleans_for_numbers(
    made: object, given: object, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], bool]]:
    if isinstance(given, bool):
        if type(made) in (int, float):
            yield path, given
    elif isinstance(given, Mapping):
        for name, value in given.items():
            inside = getattr(made, name, None) if isinstance(made, BaseModel) else _item(made, name)
            yield from _booleans_for_numbers(inside, value, (*path, name))
    elif isinstance(given, list | tuple):
        for i, value in enumerate(given):
            yield from _booleans_for_numbers(_item(made, i), value, (*path, str(i)))


def missing_entry(config: type[BaseModel], given: object, path: Sequence[str]) -> str | None:
    """Why `path` names nothing, where it names an entry of a mapping from names to fields (a method, a task)
    that does not exist; None otherwise.

    Args:
        config: the class that the fields are for.
        given: the fields as they were given.
        path: names, of which all but the last exist.
    """
    at, value = _Choice(config), given
    for name in path[:-1]:
        at, value = _entered(at, value, name)
    names = list(map(str, value)) if isinstance(value, Mapping) else []
    entry = _mapping_values(at, value)
    if entry is None or path[-1] in names or not _holds_fields(entry):
        return None
    where = ".".join((*path[:-1], _cut(path[-1])))
    return f"there is no {where}{nearest(path[-1], names)}; there are {_listed(names) or 'none'}"


@dataclass(frozen=True)
class _Choice:
    """What may stand at a place: an annotation, and what chooses among the members of a union."""

    annotation: Any
    metadata: tuple[Any, ...] = ()
    discriminator: str | None = None


def _line(e: ErrorDetails, config: type[BaseModel], given: object) -> str:
    path, at, value = _place(config, given, e["loc"])
    where = _cut(".".join(map(_cut, path)), 4 * LIMIT)
    match e["type"]:
        case "extra_forbidden":
            names = _fields(_of_value(at, value))
            name, known = str(e["loc"][-1]), _listed(names)
            reason = f"there is no such field{nearest(name, names)}"
            return f"{where}: {reason}" + (f"; there are {known}" if known else "")
        case "missing":
            return f"{where}: this field has to be given"
        case "union_tag_not_found" | "union_tag_invalid":
            tag, names = _tags(at, value)
            known = f"there are {_listed(names)}" if names else e["msg"]
            if e["type"] == "union_tag_not_found":
                return f"{where}: {tag} has to be given; {known}"
            chosen, field = value, where
            if isinstance(value, Mapping):
                chosen, field = value.get(tag), f"{where}.{tag}"
            like = nearest(chosen, names) if isinstance(chosen, str) else ""
            return f"{field} is {quoted(chosen)}, which is unknown{like}; {known}"
        case "model_type" | "model_attributes_type":
            tag, names = _tags(at, value)
            name = near(value, names) if isinstance(value, str) else None
            such = f" such as '{tag}: {name or names[0]}'" if names else ""
            return f"{where}: expected fields{such} (given: {_shown(e['input'])})"
        case "too_short":
            what = "mapping" if isinstance(e["input"], Mapping) else "list"
            least = e.get("ctx", {})["min_length"]
            return f"{where}: expected a {what} of at least {least} (given: {_shown(e['input'])})"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{where}: expected a whole number (given: {_shown(e['input'])})"
        case "float_parsing" | "float_type":
            return f"{where}: expected a number (given: {_shown(e['input'])})"
        case "tuple_type" | "list_type":
            given_text = _shown(e["input"])
            return f"{where}: expected a list, such as [{given_text}] (given: {given_text})"
        case _:
            pass
    reason = _cut(e["msg"].removeprefix("Value error, "), 4 * LIMIT)
    if e["type"] in ("value_error", "assertion_error") and isinstance(
        e["input"], BaseModel | Mapping
    ):
        # Of fields together: the reason names them.
        return f"{where}: {reason}" if where else reason
    shown = _shown(e["input"])
    return f"{where}: {reason}" if shown in reason else f"{where}: {reason} (given: {shown})"


def _place(
    config: type[BaseModel], given: object, loc: Sequence[str | int]
) -> tuple[list[str], _Choice, object]:
    """Where an error is: the names in the file, without pydantic's own for the members of a union; what may
    stand there, and what does. For a field that is unknown or missing, what may stand around it."""
    path, at, value = list[str](), _Choice(config), given
    for i, part in enumerate(loc):
        if _is_tag(at, value, part):
            continue
        if not (_has(value, part) or _knows(at, value, part)):
            continue  # pydantic's own name for a member of a union
        path.append(str(part))
        if i == len(loc) - 1 and not _knows(at, value, part):
            break
        at, value = _entered(at, value, part)
    return path, at, value


def _entered(at: _Choice, value: object, part: str | int) -> tuple[_Choice, object]:
    """What may stand in a field, an entry or an item of a place, and what does; fields whose kind may be left
    out have it, as pydantic has."""
    at, value = _inside(at, value, part), _item(value, part)
    for check in at.metadata if isinstance(value, Mapping) else ():
        if isinstance(check, BeforeValidator):
            try:
                value = check.func(value)  # type: ignore[call-arg]
            except (
                ValueError,
                TypeError,
            ):  # what it says of these fields is the error that is told
                break
    return at, value


def _is_tag(at: _Choice, value: object, part: str | int) -> bool:
    """Whether a part of a location only says which member of a union pydantic took."""
    return (
        at.discriminator is not None
        and isinstance(value, Mapping)
        and value.get(at.discriminator) == part
    )


def _knows(at: _Choice, value: object, part: str | int) -> bool:
    """Whether a place has something of this name, be it not given."""
    if _mapping_values(at, value) is not None:
        return isinstance(value, Mapping) and part in value
    if isinstance(value, list | tuple):
        return isinstance(part, int)
    return part in _fields(_of_value(at, value))


def _inside(at: _Choice, value: object, part: str | int) -> _Choice:
    """What may stand in a field, an entry or an item of a place."""
    if (entry := _mapping_values(at, value)) is not None:
        return entry
    found = _of_value(at, value)
    if isinstance(found, type) and issubclass(found, BaseModel):
        field = found.model_fields.get(str(part))
        return _Choice(Any) if field is None else _of_field(field)
    items = [a for a in get_args(found) if a is not Ellipsis]
    if get_origin(found) in (tuple, list, Sequence) and len(items) == 1:
        return _unwrapped(items[0])
    return _Choice(Any)


def _mapping_values(at: _Choice, value: object) -> _Choice | None:
    """What may stand in the entries of a mapping from any names; None for other places."""
    found = _of_value(at, value)
    origin = get_origin(found)
    if not (isinstance(origin, type) and issubclass(origin, Mapping)):
        return None
    return _unwrapped(get_args(found)[1])


def _of_field(field: FieldInfo) -> _Choice:
    discriminator = field.discriminator if isinstance(field.discriminator, str) else None
    return _unwrapped(field.annotation, tuple(field.metadata), discriminator)


def _unwrapped(
    annotation: Any, metadata: tuple[Any, ...] = (), discriminator: str | None = None
) -> _Choice:
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for one in more:
            if isinstance(one, FieldInfo) and isinstance(one.discriminator, str):
                discriminator = one.discriminator
        metadata = (*metadata, *more)
    if get_origin(annotation) in (Union, UnionType):
        members = [m for m in get_args(annotation) if m is not NoneType]
        if len(members) == 1:
            return _unwrapped(members[0], metadata, discriminator)
    return _Choice(annotation, metadata, discriminator)


def _of_value(at: _Choice, value: object) -> Any:
    """The class or annotation that a value goes with; None if that cannot be told."""
    if (choice := kind_choice(at.metadata)) is not None:
        return choice.chosen(value)
    if get_origin(at.annotation) not in (Union, UnionType):
        return at.annotation
    members = [_unwrapped(m) for m in get_args(at.annotation) if m is not NoneType]
    if at.discriminator is not None and isinstance(value, Mapping):
        members = [m for m in members if value.get(at.discriminator) in _tag_names(m, at)]
    elif isinstance(value, Mapping):
        members = [m for m in members if _holds_fields(m) or _mapping_values(m, value)]
    elif isinstance(value, list | tuple):
        members = [m for m in members if get_origin(m.annotation) in (tuple, list)]
    return _of_value(members[0], value) if len(members) == 1 else None


def _tag_names(member: _Choice, at: _Choice) -> tuple[Any, ...]:
    fields = getattr(member.annotation, "model_fields", {})
    field = fields.get(at.discriminator)
    annotation = None if field is None else field.annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _tags(at: _Choice, value: object) -> tuple[str, list[str]]:
    """The field that chooses among several kinds, and their names."""
    if (choice := kind_choice(at.metadata)) is not None:
        choice = choice.narrowed(value)
        return choice.tag, [*choice.kinds(), *choice.families]
    members = [_unwrapped(m) for m in get_args(at.annotation)]
    names = [str(name) for m in members for name in _tag_names(m, at)]
    return at.discriminator or "kind", names


def _holds_fields(at: _Choice) -> bool:
    """Whether a place is for the fields of a config, or of one of several kinds."""
    if kind_choice(at.metadata) is not None or at.discriminator is not None:
        return True
    return isinstance(at.annotation, type) and issubclass(at.annotation, BaseModel)


def _fields(found: Any) -> list[str]:
    is_config = isinstance(found, type) and issubclass(found, BaseModel)
    return list(found.model_fields) if is_config else []


def _has(value: object, name: str | int) -> bool:
    if isinstance(value, Mapping):
        return name in value
    return isinstance(value, list | tuple) and isinstance(name, int) and name < len(value)


def _item(value: object, name: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, list | tuple) and isinstance(name, int) and name < len(value):
        return value[name]
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(map(_cut, names[:_NAMES])) + more


def _shown(value: object) -> str:
    """A value; of fields and of lists of fields only what they are."""
    if isinstance(value, BaseModel | Mapping):
        return "a mapping"
    if isinstance(value, list | tuple) and any(
        isinstance(v, Mapping | list | tuple) for v in value
    ):
        return f"a list of {len(value)}"
    return quoted(list(value) if isinstance(value, tuple) else value)


def _cut(text: str, limit: int = LIMIT) -> str:
    return visible(text if len(text) <= limit else f"{text[:limit]}…")
