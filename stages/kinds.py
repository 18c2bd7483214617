"""Kinds: the classes among which `kind` chooses in an experiment file, and where they are found.

A kind is one file with one class: its fields are those of the experiment file, its methods are what it does.
Whatever works with it knows its base class only, so that adding a kind changes nothing else, and editing one
changes the keys of its own nodes.

The names of our own kinds are read off the text of their modules, and only what is named is imported: some
take seconds.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, ForwardRef, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from permafrost.stages.plugins import (
    Plugin,
    classes,
    defined_in,
    generation,
    in_use,
    origin_of,
    use_files,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class Kind(BaseModel):
    """One of several ways to do something; a concrete one has `kind: Literal["its-name"] = "its-name"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: ClassVar[str] = "kind"
    """The field that holds its name; another one for kinds that share a value of `kind`."""

    kind: Any


K = TypeVar("K", bound=BaseModel)
NAME_IT = (
    "--plugins my_head.py of a command, 'plugins' of an experiment, permafrost.register in Python"
)
"""How a plug-in is named, for messages. Nothing in a home is ever run: whoever uses it names the file."""
CATEGORIES: list["Category[Any]"] = []
"""Every category whose module was imported; see `all_categories`."""


class Category(Generic[K]):
    """All kinds of one base class.

    Args:
        noun: for messages, e.g. `head`.
        base: what every kind of the category is.
        packages: whose modules hold our own kinds. They are named, not imported, so that a room further up
            may hold kinds of a category below it.
        families: names that stand for a whole category, whose kinds another field tells apart.
        other_names: further names that a file may have for a kind, each with its own name.
    """

    def __init__(
        self,
        noun: str,
        base: type[K],
        *packages: str,
        families: Mapping[str, "Category[Any]"] | None = None,
        other_names: Mapping[str, str] | None = None,
    ) -> None:
        self.noun, self.base, self.packages = noun, base, packages
        self.families, self.other_names = families or {}, other_names or {}
        self.tag: str = getattr(base, "tag", "kind")
        self._modules: dict[str, list[str]] | None = None
        self._ours: dict[str, type[K]] | None = None
        self._all: tuple[object, dict[str, type[K]]] | None = None
        CATEGORIES.append(self)

    def kinds(self) -> Mapping[str, type[K]]:
        """Every kind by name: ours, those of installed packages, of plug-in files, and registered ones.

        Raises:
            InputError: one is not written to its end, or two have the same name; says where each comes
                from.
        """
        if self._all is not None and self._all[0] == generation():
            return self._all[1]
        found = dict(self._own())
        taken = found | {name: family.base for name, family in self.families.items()}
        for name, cls in self._named(classes()):
            if taken.setdefault(name, cls) is not cls:
                raise InputError(
                    f"there are two kinds of {self.noun} with the name {quoted(name)}: "
                    f"{origin_of(taken[name])} and {origin_of(cls)}; give one another name in its "
                    f"field {quoted(self.tag)}"
                )
            found[name] = cls
        self._all = generation(), found
        return found

    def find(self, name: str) -> type[K] | None:
        """The kind of a name; None if there is none. Without plug-ins, no other of our own is imported.

        Raises:
            InputError: as `kinds`.
        """
        if self._ours is None and not classes():
            for named, cls in self._in_modules(self._own_modules().get(name, ())):
                if named == name:
                    return cls
        return self.kinds().get(name)

    def _own(self) -> dict[str, type[K]]:
        if self._ours is None:
            modules = {m for found in self._own_modules().values() for m in found}
            found = list(self._in_modules(sorted(modules)))
            ours = dict(found)
            assert len(ours) == len(found), f"two kinds of {self.noun} share a name"
            # Whole, as another thread may look.
            self._ours = ours
        return self._ours

    def _own_modules(self) -> Mapping[str, list[str]]:
        """Our modules that define something of a name; it may be of another category."""
        if self._modules is None:
            modules = dict[str, list[str]]()
            written = re.compile(rf"^    {self.tag}: Literal\[[\"'](.+?)[\"']\] = ", re.MULTILINE)
            for module, path in sorted(p for name in self.packages for p in _sources(name)):
                for name in written.findall(path.read_text(encoding="utf-8")):
                    modules.setdefault(name, []).append(module)
            self._modules = modules
        return self._modules

    def _in_modules(self, modules: Iterable[str]) -> Iterator[tuple[str, type[K]]]:
        for module in modules:
            yield from self._named(defined_in(import_module(module)))

    def _named(self, found: Iterable[type]) -> Iterator[tuple[str, type[K]]]:
        for cls in found:
            if not issubclass(cls, self.base) or getattr(cls, "tag", "kind") != self.tag:
                continue
            if (name := kind_name(cls)) is not None:
                require_written(cls)
                yield name, cls

    def validate(self, value: object) -> K:
        """A kind from its fields; one that is a kind already stays what it is.

        Raises:
            PydanticKnownError: no fields, or no kind of this name; as pydantic says it of a union.
            ValidationError: wrong fields.
        """
        if isinstance(value, self.base):
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("model_type", {"class_name": self.base.__name__})
        name = self._named_by(value)
        if name is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": f"'{self.tag}'"})
        if isinstance(name, str) and name in self.families:
            return self.families[name].validate(value)
        if not isinstance(name, str) or (kind := self.find(name)) is None:
            expected = ", ".join(f"'{known}'" for known in (*self.kinds(), *self.families))
            raise PydanticKnownError(
                "union_tag_invalid",
                {
                    "discriminator": f"'{self.tag}'",
                    "tag": quoted(name).strip("'"),
                    "expected_tags": expected,
                },
            )
        return kind.model_validate({**value, self.tag: name})

    def chosen(self, value: object) -> type[BaseModel] | None:
        """The kind that is chosen by fields, or by a name alone; None if they choose none."""
        name = self._named_by(value) if isinstance(value, Mapping) else value
        if not isinstance(name, str):
            return None
        family = self.families.get(name)
        return self.find(name) if family is None else family.chosen(value)

    def narrowed(self, value: object) -> "Category[Any]":
        """The category that tells apart what these fields choose: itself, or a family."""
        name = value.get(self.tag) if isinstance(value, Mapping) else None
        return self.families.get(name, self) if isinstance(name, str) else self

    def _named_by(self, value: Mapping[Any, Any]) -> Any:
        name = value.get(self.tag)
        return self.other_names.get(name, name) if isinstance(name, str) else name

    def field(self) -> "_Field":
        """For `Annotated[Base, CATEGORY.field()]`: a field of any kind, which dumps all of its fields."""
        return _Field(self)

    def field_or_name(self) -> "_FieldOrName":
        """A field that also takes a kind's name for the kind with its defaults, and dumps such a one as its
        name if the kind has no fields."""
        return _FieldOrName(self)


def all_categories() -> list[Category[Any]]:
    """Every category of which our kinds have fields, with all kinds imported. Whoever calls this has imported
    what an experiment is made of.

    Raises:
        InputError: see `Category.kinds`.
    """
    for category in CATEGORIES:  # importing kinds adds the categories of their fields
        category.kinds()
    return CATEGORIES


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """The modules of a package and their files, without importing any."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    for folder in spec.submodule_search_locations or ():
        for module in iter_modules([folder], f"{package}."):
            if not module.ispkg:
                yield module.name, Path(folder, f"{module.name.rpartition('.')[2]}.py")


class _Field:
    def __init__(self, category: Category[Any]) -> None:
        self.category = category

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        # Serialised by what is there: by the annotation, only the base's fields would be written.
        return core_schema.no_info_plain_validator_function(self.category.validate)


class _FieldOrName:
    def __init__(self, category: Category[Any]) -> None:
        self.category = category

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: object) -> Any:
            return self.category.validate({"kind": value} if isinstance(value, str) else value)

        def dump(value: Kind, handler: Callable[[Any], Any]) -> Any:
            return value.kind if type(value).model_fields.keys() == {"kind"} else handler(value)

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                dump, schema=core_schema.any_schema()
            ),
        )


def kind_choice(metadata: Iterable[object]) -> Category[Any] | None:
    """The category among whose kinds a field chooses, given what `Annotated` says of it; None for others."""
    fields = (m for m in metadata if isinstance(m, _Field | _FieldOrName))
    return next((m.category for m in fields), None)


def kind_name(cls: type) -> str | None:
    """The value of `kind`, or of another tag, that chooses a class; None for one that nobody chooses, such as
    a base.

    Raises:
        InputError: it has several names, or another default than its name.
    """
    field = getattr(cls, "model_fields", {}).get(getattr(cls, "tag", "kind"))
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    names = get_args(field.annotation)
    if len(names) != 1 or not isinstance(names[0], str) or field.default != names[0]:
        raise _misnamed(cls)
    return names[0]


def require_written(cls: type) -> None:
    """Raises: InputError: a kind lacks a method that its base class leaves to it."""
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        base = next(c for c in cls.__mro__ if missing[0] in vars(c))
        raise InputError(
            f"{origin_of(cls)} lacks {', '.join(missing)}; write {'it' if len(missing) == 1 else 'them'}, as "
            f"the base class {base.__module__}.{base.__qualname__} describes"
        )


def _misnamed(cls: type[BaseModel]) -> InputError:
    tag: str = getattr(cls, "tag", "kind")
    field = cls.model_fields[tag]
    annotation = field.annotation
    if isinstance(annotation, ForwardRef):
        written = quoted(f"{tag}: {annotation.__forward_arg__}")
        return InputError(
            f"{origin_of(cls)} has the field {written}, with a name that "
            "its file does not know; import it there, for example: from typing import Literal"
        )
    written = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    default = "" if field.is_required() else f" = {field.default!r}"
    name = next((n for n in get_args(annotation) if isinstance(n, str)), "my_name")
    return InputError(
        f"{origin_of(cls)} has the field {quoted(f'{tag}: {written}{default}')}; a kind has one name, which "
        f'is its default too: {tag}: Literal["{name}"] = "{name}"'
    )


def use_plugins(paths: Sequence[str | Path]) -> None:
    """Load plug-in files, in place of those loaded before; if one is wrong, none is in use.

    Whoever calls this has imported what an experiment is made of.

    Raises:
        InputError: see `use_files`; or a file defines no kind, or one that cannot be used.
    """
    try:
        use_files(paths)
        for plugin in in_use():
            _require_kinds(plugin)
        if paths:
            all_categories()
    except InputError:
        use_files([])
        raise


def _require_kinds(plugin: Plugin) -> None:
    own = defined_in(plugin.module)
    derived = [cls for cls in own if issubclass(cls, Kind)]
    named = [cls for cls in derived if kind_name(cls) is not None]
    for cls in derived:
        if cls not in named and cls.model_fields[cls.tag].annotation is not Any:
            raise _misnamed(cls)
    bases = tuple(category.base for category in CATEGORIES)
    if named and all(issubclass(cls, bases) for cls in named):
        return
    example = 'kind: Literal["my_head"] = "my_head"'
    if unnamed := [cls for cls in derived if cls not in named and issubclass(cls, bases)]:
        names = ", ".join(cls.__name__ for cls in unnamed)
        mine = f'{unnamed[0].tag}: Literal["my_name"] = "my_name"'
        reason = f"{names} has no name; give it one: {mine}"
    else:
        found = ", ".join(cls.__name__ for cls in named or own)
        wrong = f"{found} derives from no base class of kinds" if found else "it has no class"
        reason = (
            f"{wrong}; derive one from what it is, such as permafrost.stages.heads.head.Head, and give it a "
            f"name: {example}"
        )
    raise InputError(f"the plug-in {quoted(plugin.origin)} defines no kind: {reason}")


def require_known(error: ValidationError, what: str) -> None:
    """Told of fields that were read from files of a home, or of an exported head: no code lies beside them.

    Raises:
        InputError: they name a kind that is not known here.
    """
    for one in error.errors():
        if one["type"] == "union_tag_invalid" and "ctx" in one:
            kind, where = quoted(one["ctx"]["tag"]), ".".join(map(str, one["loc"]))
            raise InputError(
                f"{what} needs the kind {kind} ({where}), which is not known here; if it is of a plug-in, "
                f"name its file: {NAME_IT}"
            ) from error


def kinds_in(value: object) -> Iterator[type[Kind]]:
    """The classes of all kinds inside a config, its own among them."""
    if isinstance(value, Kind):
        yield type(value)
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from kinds_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from kinds_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from kinds_in(one)
