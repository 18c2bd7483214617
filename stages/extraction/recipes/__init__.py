"""How a text becomes model input, and how the forward pass is altered.

A recipe is part of a store's identity, with all its fields. The span is the set of tokens that poolings run
over; `span_start:span_end` is the part of the input that is the text itself.
"""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.extraction.recipes.contrastive import ContrastiveRecipe
    from permafrost.stages.extraction.recipes.echo import EchoRecipe
    from permafrost.stages.extraction.recipes.htp import HtpRecipe
    from permafrost.stages.extraction.recipes.inputs import OPENING, PLACEHOLDER, Encoded
    from permafrost.stages.extraction.recipes.meta_eol import MetaEolRecipe
    from permafrost.stages.extraction.recipes.parse import parse_recipe
    from permafrost.stages.extraction.recipes.plain import PlainRecipe
    from permafrost.stages.extraction.recipes.prepending import TokenPrependingRecipe
    from permafrost.stages.extraction.recipes.prompt_bert import PromptBertRecipe
    from permafrost.stages.extraction.recipes.prompts import (
        FutureEolRecipe,
        KnowledgeRecipe,
        PretendedCotRecipe,
        PromptEolRecipe,
        TemplateRecipe,
    )
    from permafrost.stages.extraction.recipes.recipe import (
        RECIPES,
        Intervention,
        Recipe,
        RecipeConfig,
        Rewiring,
        definite_readout,
        encode,
        normalise_sentence,
        recipe_identity,
        recipe_of,
        resolve_recipe,
    )
    from permafrost.stages.extraction.recipes.sentences import sentence_starts

__getattr__ = late_names(__name__)

__all__ = [
    "OPENING",
    "PLACEHOLDER",
    "RECIPES",
    "ContrastiveRecipe",
    "EchoRecipe",
    "Encoded",
    "FutureEolRecipe",
    "HtpRecipe",
    "Intervention",
    "KnowledgeRecipe",
    "MetaEolRecipe",
    "PlainRecipe",
    "PretendedCotRecipe",
    "PromptBertRecipe",
    "PromptEolRecipe",
    "Recipe",
    "RecipeConfig",
    "Rewiring",
    "TemplateRecipe",
    "TokenPrependingRecipe",
    "definite_readout",
    "encode",
    "normalise_sentence",
    "parse_recipe",
    "recipe_identity",
    "recipe_of",
    "resolve_recipe",
    "sentence_starts",
]
