"""How a text becomes model input, and how the forward pass is altered.

A recipe is part of a store's identity, with all its fields. The span are the tokens that poolings run
over; `span_start:span_end` is the part of the input that is the text itself.
"""

from permafrost.stages.extraction.recipes.alterations import Intervention, Rewiring
from permafrost.stages.extraction.recipes.contrastive import ContrastiveRecipe
from permafrost.stages.extraction.recipes.echo import EchoRecipe
from permafrost.stages.extraction.recipes.encoded import OPENING, PLACEHOLDER, Encoded
from permafrost.stages.extraction.recipes.htp import HtpRecipe
from permafrost.stages.extraction.recipes.kinds import Recipe
from permafrost.stages.extraction.recipes.meta_eol import MetaEolRecipe
from permafrost.stages.extraction.recipes.normalisation import normalise_sentence
from permafrost.stages.extraction.recipes.parse import parse_recipe
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.prepending import TokenPrependingRecipe
from permafrost.stages.extraction.recipes.prompts import (
    FutureEolRecipe,
    KnowledgeRecipe,
    PretendedCotRecipe,
    PromptEolRecipe,
)
from permafrost.stages.extraction.recipes.sentences import sentence_starts
from permafrost.stages.extraction.recipes.template import TemplateRecipe
from permafrost.stages.extraction.recipes.use import (
    definite_readout,
    encode,
    expand_recipe,
    recipe_identity,
    resolve_recipe,
)

__all__ = [
    "OPENING",
    "PLACEHOLDER",
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
    "PromptEolRecipe",
    "Recipe",
    "Rewiring",
    "TemplateRecipe",
    "TokenPrependingRecipe",
    "definite_readout",
    "encode",
    "expand_recipe",
    "normalise_sentence",
    "parse_recipe",
    "recipe_identity",
    "resolve_recipe",
    "sentence_starts",
]
