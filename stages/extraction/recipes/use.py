"""What is done with a recipe."""

from collections.abc import Sequence
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.encoded import Encoded
from permafrost.stages.extraction.recipes.kinds import Recipe
from permafrost.stages.extraction.recipes.meta_eol import MetaEolRecipe
from permafrost.stages.extraction.recipes.normalisation import normalise_sentence
from permafrost.stages.extraction.recipes.tokenising import require_readable
from permafrost.stages.extraction.sizes import BackboneSizes


def expand_recipe(recipe: Recipe) -> tuple[Recipe, ...]:
    """Members of an ensemble; of any other recipe the recipe itself."""
    return recipe.members() if isinstance(recipe, MetaEolRecipe) else (recipe,)


def resolve_recipe(recipe: Recipe, sizes: BackboneSizes) -> Recipe:
    """Make automatic fields definite: the readout is the first token in an encoder, the last in a decoder.

    Raises:
        InputError: the backbone cannot do what the recipe asks for, or the recipe is an ensemble.
    """
    return recipe.model_copy(update=recipe.definite(sizes))


def definite_readout(recipe: Recipe) -> Literal["first", "last"]:
    """The readout of a resolved recipe."""
    assert recipe.readout != "auto", "a recipe has to be resolved for a backbone before it is used"
    return recipe.readout


def recipe_identity(recipe: Recipe) -> dict[str, Any]:
    """JSON form of a recipe, as it goes into a store's identity."""
    return recipe.model_dump(mode="json")


def encode(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
) -> Encoded:
    """Tokenise texts under a recipe, special tokens exactly as the tokenizer adds them by itself.

    A text that is too long loses its end. Special tokens and the prompt's words stay: `plain` cuts
    tokens, as transformers' own truncation on the right does; recipes with a template cut the text and
    fill the template again, so that the input is one that a shorter text would have given.

    Args:
        recipe: how texts become input; no ensemble.
        tokenizer: of the backbone; a fast one, from `load_tokenizer`.
        texts: any number from 1.
        max_length: tokens per input at most, special tokens and placeholders included.

    Raises:
        InputError: an empty text, a text of which no token is left, a prompt that fills max_length, or an
            ensemble; names the text by its place in `texts`, from 0.
    """
    require_readable(texts)
    if recipe.normalise == "sentence":
        texts = [normalise_sentence(text) for text in texts]
    return recipe.encoded(tokenizer, texts, max_length)
