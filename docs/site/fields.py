"""Pages on every field that an experiment file may have, made from the pydantic models.

There is a page for the experiment and its sections, and one for each category with its kinds and their
sections. What a field means is the string below it in the source.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from permafrost.flows.experiment import Experiment
from permafrost.stages.graphs.given import GRAPHS_FOR_TEXTS
from permafrost.stages.kinds import Category, all_categories, kind_choice

FOLDER = "reference/fields"
USED_ELSEWHERE = {
    GRAPHS_FOR_TEXTS.noun: "`--graphs` of `permafrost embed`, and `graphs` of `permafrost.encode`"
}
"""Where categories are used that no field of an experiment has."""
WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "`null`",
    Any: "anything",
    JsonValue: "anything",
}
BOUNDS = {
    "gt": "above {:,}",
    "ge": "at least {:,}",
    "lt": "below {:,}",
    "le": "at most {:,}",
    "pattern": "matching `{}`",
    "min_length": "at least {:,} {unit}",
    "max_length": "at most {:,} {unit}",
}


@dataclass(frozen=True)
class Field:
    """A field of a model."""

    name: str
    type: str
    """What may stand there, in words, with links."""
    default: str | None
    """As in YAML; None if the field has to be given."""
    meaning: str


@dataclass
class Part:
    """A model: the experiment, a section of it, or a kind."""

    model: type[BaseModel]
    title: str
    level: int
    fields: tuple[Field, ...] = ()


@dataclass
class Page:
    """The experiment with its sections, or a category with its kinds and theirs."""

    name: str
    title: str
    about: str
    parts: list[Part] = field(default_factory=list)

    def text(self) -> str:
        """The page in MyST's Markdown."""
        return f"# {self.title}\n\n{self.about}\n\n" + "\n".join(map(_part_text, self.parts))


def field_pages() -> list[Page]:
    """The experiment's page, then one for each category, in the order in which fields lead to them."""
    walk = _Walk()
    first = Page(
        "experiment-fields",
        "The experiment",
        f"{own_docstring(Experiment)}\n\nSections follow in the order of the fields; what may have several "
        "kinds has a page for them.",
    )
    walk.section(first, Experiment, "The file", 2)
    pages = [first]
    while walk.waiting or walk.unreached():
        pages.append(walk.category_page((walk.waiting or walk.unreached())[0]))
    return pages


def written_pages() -> dict[str, str]:
    """Text by path, from the folder of all pages: an index, and every page."""
    pages = field_pages()
    names = "\n".join(page.name for page in pages)
    index = (
        "# Fields of an experiment file\n\nMade from the models that read the file. A wrong field or value "
        "is refused with its path and what there is.\n\n"
        f"```{{toctree}}\n:maxdepth: 2\n\n{names}\n```\n"
    )
    return {f"{FOLDER}/index.md": index} | {f"{FOLDER}/{p.name}.md": p.text() for p in pages}


class _Walk:
    """Goes from model to model; each has its place on the page that is written when it is first met."""

    def __init__(self) -> None:
        self.waiting: list[Category[Any]] = []
        """Categories that fields name and that have no page yet."""
        self._begun = list[Category[Any]]()
        self._known = set[type[BaseModel]]()

    def unreached(self) -> list[Category[Any]]:
        """Categories that no field has led to."""
        return [category for category in all_categories() if category not in self._begun]

    def category_page(self, category: Category[Any]) -> Page:
        """The page of a category, whose kinds may name more."""
        self._begun.append(category)
        self.waiting = [c for c in self.waiting if c is not category]
        title = category.noun[0].upper() + category.noun[1:]
        about = [own_docstring(category.base), f"`{category.tag}` names the kind."]
        if category.noun in USED_ELSEWHERE:
            about.append(f"For {USED_ELSEWHERE[category.noun]}.")
        for other, name in category.other_names.items():
            about.append(f"`{other}` is another name of `{name}`.")
        for name, family in category.families.items():
            self.name(family)
            about.append(
                f"`{category.tag}: {name}` is {_link(family)}, told apart by `{family.tag}`."
            )
        about += [
            f"`{category.tag}: {name}`: [its fields](#{_anchor(kind)})."
            for name, kind in our_kinds(category).items()
            if kind in self._known
        ]
        page = Page(_page_name(category), title, "\n\n".join(about))
        for name, kind in our_kinds(category).items():
            self.section(page, kind, f"`{category.tag}: {name}`", 2)
        return page

    def name(self, category: Category[Any]) -> None:
        """Have a page made for a category."""
        if category not in self._begun and category not in self.waiting:
            self.waiting.append(category)

    def section(self, page: Page, model: type[BaseModel], title: str, level: int) -> None:
        """Put a model on a page, and behind it those that its fields lead to, unless they are known."""
        if model in self._known:
            return
        self._known.add(model)
        part = Part(model, title, level)
        page.parts.append(part)
        part.fields = tuple(_field(model, name, info) for name, info in _own_fields(model))
        of = "" if model is Experiment else f" of {title}"
        for name, info in _own_fields(model):
            categories, models = _named_by(info.annotation, info.metadata)
            for category in categories:
                self.name(category)
            for one in models:
                tag = _tag(one)
                chosen = "" if tag is None else f": {{{tag[0]}: {tag[1]}}}"
                inside = f"`{name}{chosen}`{of}"
                self.section(page, one, inside, 2 if model is Experiment else 3)


def _own_fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Every field but the one that names the kind, as that is in the heading."""
    tag = _tag(model)
    return [(n, f) for n, f in model.model_fields.items() if tag is None or n != tag[0]]


def _tag(model: type[BaseModel]) -> tuple[str, str] | None:
    """The field by which a kind, or a member of a union, is chosen, and its value."""
    for name in (getattr(model, "tag", "kind"), *model.model_fields):
        info = model.model_fields.get(name)
        if info is not None and get_origin(info.annotation) is Literal:
            values = get_args(info.annotation)
            if len(values) == 1:
                return name, str(values[0])
    return None


def _named_by(
    annotation: Any, metadata: Sequence[Any] = ()
) -> tuple[list[Category[Any]], list[type[BaseModel]]]:
    """The categories and the models that a field's value may be of."""
    if (category := kind_choice(metadata)) is not None:
        return [category], []
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _named_by(inner, more)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [], [annotation]
    found = [
        _named_by(one) for one in get_args(annotation) if get_origin(annotation) is not Literal
    ]
    return [c for cs, _ in found for c in cs], [m for _, ms in found for m in ms]


def _field(model: type[BaseModel], name: str, info: FieldInfo) -> Field:
    # Source speaks Python, files speak YAML.
    meaning = re.sub(r"\bNone\b(?! of)", "`null`", _strings(model).get(name, ""))
    return Field(name, _in_words(info.annotation, info.metadata), _default(info), meaning)


def _in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What may stand in a field."""
    if (category := kind_choice(metadata)) is not None:
        alone = ", or its name alone" if _takes_names(category, metadata) else ""
        return f"{_link(category)}{alone}"
    unit = "characters" if annotation is str else "entries"
    return _type_in_words(annotation) + "".join(f", {one}" for one in _bounds(metadata, unit))


def _type_in_words(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        more = [
            m for one in inside[1:] for m in (one.metadata if isinstance(one, FieldInfo) else [one])
        ]
        return _in_words(inside[0], more)
    if origin is Literal:
        return _either([_yaml(value) for value in inside])
    if origin in (Union, UnionType):
        return _either([_type_in_words(one) for one in inside])
    if origin is tuple and Ellipsis not in inside:
        return f"list of {len(inside)}: " + ", ".join(map(_type_in_words, inside))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"by name: {_type_in_words(inside[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_type_in_words(inside[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        tag = _tag(annotation)
        return f"[{'fields' if tag is None else f'`{tag[0]}: {tag[1]}`'}](#{_anchor(annotation)})"
    return WORDS[annotation]


def _either(ways: Sequence[str]) -> str:
    """Each way once, null last."""
    ways = sorted(dict.fromkeys(ways), key=lambda way: way == WORDS[NoneType])
    return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


def _bounds(metadata: Sequence[Any], unit: str) -> Iterator[str]:
    for one in metadata:
        for name, words in BOUNDS.items():
            if (value := getattr(one, name, None)) is not None:
                yield words.format(value, unit=unit)


def _takes_names(category: Category[Any], metadata: Sequence[Any]) -> bool:
    """Whether a field also takes the name of a kind that needs no other fields."""
    form: Any = Annotated
    adapter = TypeAdapter[Any](form[(category.base, *metadata)])

    def takes(name: str) -> bool:
        try:
            adapter.validate_python(name)
        except ValidationError:
            return False
        return True

    return any(takes(name) for name in our_kinds(category))


def _default(info: FieldInfo) -> str | None:
    if info.is_required():
        return None
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        chosen = _tag(type(value))
        fields = value.model_dump(mode="json", exclude_defaults=True)
        value = dict([chosen] if chosen else []) | fields
        return _yaml(value) if value else "those of its fields"
    return _yaml(value)


def _yaml(value: Any) -> str:
    """A value as it stands in a file, as code."""
    plain = to_jsonable_python(value)
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


@cache
def _strings(model: type) -> dict[str, str]:
    """What is written below the fields of a class and of its bases, by field."""
    found = dict[str, str]()
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        found[above.target.id] = inspect.cleandoc(text)
                    case _:
                        pass
    return found


def our_kinds(category: Category[Any]) -> dict[str, type[BaseModel]]:
    """The kinds of a category that come with the project; plug-ins that are loaded are not described."""
    found = category.kinds().items()
    return {name: kind for name, kind in found if kind.__module__.startswith("permafrost.")}


def own_docstring(cls: type) -> str:
    """The docstring of a class itself, not one that it inherits."""
    text = vars(cls).get("__doc__")
    return inspect.cleandoc(text) if text else ""


def _page_name(category: Category[Any]) -> str:
    return category.noun.replace(" ", "-")


def _link(category: Category[Any]) -> str:
    article = "an" if category.noun[0] in "aeiou" else "a"
    return f"{article} [{category.noun}]({_page_name(category)}.md)"


def _anchor(model: type) -> str:
    return f"{model.__module__}.{model.__qualname__}".replace("_", "-").replace(".", "-").lower()


def _part_text(part: Part) -> str:
    text = f"({_anchor(part.model)})=\n{'#' * part.level} {part.title}\n\n"
    # The experiment's own docstring begins its page.
    text += "" if part.model is Experiment else f"{own_docstring(part.model)}\n\n"
    return text + "\n".join(map(_field_text, part.fields))


def _field_text(one: Field) -> str:
    default = "has to be given" if one.default is None else f"default {one.default}"
    meaning = textwrap.indent(one.meaning, "  ")
    return f"`{one.name}`\n: {one.type}; {default}\n\n{meaning}\n"
