"""Recipes under which no token has seen what follows it."""

from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


def require_prefixes(recipe: Recipe, sizes: BackboneSizes) -> None:
    """Check that a token's vectors depend on the tokens up to it alone.

    Raises:
        InputError: an encoder, a recipe that copies later states or shows the text twice, or one that
            changes the pass.
    """
    if not sizes.is_decoder:
        raise InputError(
            f"a token is asked for what follows it, but in {sizes.model_type}, an encoder, every token sees "
            f"the whole text; use a decoder"
        )
    if recipe.rewiring is not None or recipe.intervention is not None or recipe.says_text_twice:
        raise InputError(
            f"a token is asked for what follows it, but under the recipe {recipe.name()} it has seen that, "
            f"or is changed in the pass; use plain or a template"
        )
