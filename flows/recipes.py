"""Recipes in an experiment: by fields, as on the command line, or by name."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from permafrost.stages.extraction.recipes.parse import parse_recipe
from permafrost.stages.extraction.recipes.recipe import RecipeConfig

DEFAULT_RECIPE = "default"
"""Name of the experiment's own `recipe` beside those in `recipes`."""


def _named_recipe(value: Any) -> Any:
    return parse_recipe(value) if isinstance(value, str) else value


RecipeField = Annotated[RecipeConfig, BeforeValidator(_named_recipe)]
"""A recipe with its fields, or as on the command line: `prompt_eol:spelling=plain`."""


def recipe_on(recipe: str, backbone: str | None) -> str:
    """The name of a recipe on an adapted backbone; on the experiment's own (None) it is the recipe's."""
    return recipe if backbone is None else f"{recipe} on {backbone}"
