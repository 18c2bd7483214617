"""Recipes from the command line."""

import re
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from permafrost.stages.extraction.recipes.base import BaseRecipe
from permafrost.stages.extraction.recipes.kinds import AnyRecipe, Recipe
from permafrost.stages.extraction.recipes.meta_eol import MetaEolRecipe
from permafrost.stages.extraction.recipes.use import expand_recipe
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_ADAPTER: TypeAdapter[AnyRecipe] = TypeAdapter(Recipe)
_KINDS: dict[str, type[BaseRecipe]] = {cls.name(): cls for cls in get_args(AnyRecipe)}


def parse_recipe(text: str) -> Recipe:
    """Read `plain`, `htp:size=2,placement=local`, `meta_eol[3]` or `template:template=Topic of {text}:`.

    A comma ends a value only where `,FIELD=` with a field of this recipe follows, so that prompts may
    hold commas, colons and equals signs. A number in brackets, from 1, is one member of an ensemble.

    Raises:
        InputError: unknown kind, member, field or value; says what exists.
    """
    name, _, options = text.partition(":")
    kind, bracket, number = name.partition("[")
    if kind not in _KINDS:
        raise InputError(
            f"there is no recipe {quoted(kind)}; there are {', '.join(sorted(_KINDS))}"
        )
    values = _values(text, kind, options)
    try:
        recipe = _ADAPTER.validate_python({"kind": kind, **values})
    except ValidationError as error:
        reasons = "; ".join(f"{_field(e['loc'])}: {e['msg']}" for e in error.errors())
        raise InputError(f"cannot read the recipe {quoted(text)}: {reasons}") from error
    return _member(recipe, bracket + number) if bracket else recipe


def _values(text: str, kind: str, options: str) -> dict[str, str]:
    fields = _KINDS[kind].options()
    known = "|".join(map(re.escape, fields))
    values: dict[str, str] = {}
    for part in re.split(rf",(?=(?:{known})=)", options) if options else []:
        name, equals, value = part.partition("=")
        if not equals or name not in fields or name in values:
            reason = "is given twice" if name in values else "is no option"
            raise InputError(
                f"{quoted(name)} in the recipe {quoted(text)} {reason}; {kind} has {', '.join(fields)}, "
                f"written as {kind}:{fields[0]}=..."
            )
        values[name] = value
    return values


def _field(loc: tuple[int | str, ...]) -> int | str:
    """Name of the field: the place of an error begins with the kind, and may end inside the field."""
    return loc[min(1, len(loc) - 1)]


def _member(recipe: Recipe, brackets: str) -> Recipe:
    if not isinstance(recipe, MetaEolRecipe):
        raise InputError(
            f"the recipe {recipe.kind} is no ensemble, so it has no member {brackets}; leave the brackets out"
        )
    members = expand_recipe(recipe)
    number = re.fullmatch(r"\[([0-9]{1,9})\]", brackets)
    if number is None or not 1 <= int(number[1]) <= len(members):
        raise InputError(
            f"there is no recipe {recipe.kind}{brackets}; the prompts of {recipe.kind} are numbered "
            f"1..{len(members)}, e.g. {recipe.kind}[1]"
        )
    return members[int(number[1]) - 1]
