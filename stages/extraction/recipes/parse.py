"""Recipes from the command line."""

import re

from pydantic import ValidationError

from permafrost.stages.extraction.recipes.recipe import RECIPES, Recipe
from permafrost.stages.kinds import NAME_IT
from permafrost.stages.wrong_fields import wrong_fields
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def parse_recipe(text: str) -> Recipe:
    """Parse `plain`, `htp:size=2,placement=local`, `meta_eol[3]` or `template:template=Topic of {text}:`.

    A comma ends a value only if a field of this recipe follows it, as in `,FIELD=`, so that prompts may
    contain commas, colons and equals signs. A number in brackets, from 1, selects one member of an ensemble.

    Raises:
        InputError: unknown kind, member, field or value; the message lists those that exist.
    """
    name, _, options = text.partition(":")
    kind, bracket, number = name.partition("[")
    kinds = RECIPES.kinds()
    if kind not in kinds:
        raise InputError(
            f"there is no recipe {quoted(kind)}; there are {', '.join(sorted(kinds))}; if it is of a "
            f"plug-in, name its file: {NAME_IT}"
        )
    values = _values(text, kinds[kind], options)
    try:
        recipe = kinds[kind].model_validate(values)
    except ValidationError as error:
        reasons = wrong_fields(error, kinds[kind], values, "; ")
        raise InputError(f"cannot read the recipe {quoted(text)}: {reasons}") from error
    return _member(recipe, bracket + number) if bracket else recipe


def _values(text: str, kind: type[Recipe], options: str) -> dict[str, str]:
    fields = kind.options()
    names = "|".join(map(re.escape, fields))
    values: dict[str, str] = {}
    for part in re.split(rf",(?=(?:{names})=)", options) if options else []:
        name, equals, value = part.partition("=")
        if not equals or name not in fields or name in values:
            reason = "is given twice" if name in values else "is not an option"
            raise InputError(
                f"{quoted(name)} in the recipe {quoted(text)} {reason}; {kind.name()} has "
                f"{', '.join(fields)}, written as {kind.name()}:{fields[0]}=..."
            )
        values[name] = value
    return values


def _member(recipe: Recipe, brackets: str) -> Recipe:
    if not recipe.is_ensemble:
        raise InputError(
            f"the recipe {recipe.name()} is not an ensemble, so it has no member {brackets}; leave the "
            "brackets out"
        )
    members = recipe.members()
    number = re.fullmatch(r"\[([0-9]{1,9})\]", brackets)
    if number is None or not 1 <= int(number[1]) <= len(members):
        raise InputError(
            f"there is no recipe {recipe.name()}{brackets}; the prompts of {recipe.name()} are numbered "
            f"1..{len(members)}, e.g. {recipe.name()}[1]"
        )
    return members[int(number[1]) - 1]
