"""How a text becomes model input, and how the forward pass is altered.

A recipe is part of a store's identity, with all its fields. The span are the tokens that poolings run
over; `span_start:span_end` is the part of the input that is the text itself.
"""

from stages.extraction.recipes.alterations import Intervention, Rewiring
from stages.extraction.recipes.contrastive import ContrastiveRecipe
from stages.extraction.recipes.echo import EchoRecipe
from stages.extraction.recipes.encoded import OPENING, PLACEHOLDER, Encoded
from stages.extraction.recipes.htp import HtpRecipe
from stages.extraction.recipes.kinds import Recipe
from stages.extraction.recipes.meta_eol import MetaEolRecipe
from stages.extraction.recipes.normalisation import normalise_sentence
from stages.extraction.recipes.parse import parse_recipe
from stages.extraction.recipes.plain import PlainRecipe
from stages.extraction.recipes.prepending import TokenPrependingRecipe
from stages.extraction.recipes.prompts import (
    FutureEolRecipe,
    KnowledgeRecipe,
    PretendedCotRecipe,
    PromptEolRecipe,
)
from stages.extraction.recipes.sentences import sentence_starts
from stages.extraction.recipes.template import TemplateRecipe
from stages.extraction.recipes.use import (
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
