"""All recipes, told apart by `kind`."""

from typing import Annotated

from pydantic import Field

from stages.extraction.recipes.contrastive import ContrastiveRecipe
from stages.extraction.recipes.echo import EchoRecipe
from stages.extraction.recipes.htp import HtpRecipe
from stages.extraction.recipes.meta_eol import MetaEolRecipe
from stages.extraction.recipes.plain import PlainRecipe
from stages.extraction.recipes.prepending import TokenPrependingRecipe
from stages.extraction.recipes.prompts import (
    FutureEolRecipe,
    KnowledgeRecipe,
    PretendedCotRecipe,
    PromptEolRecipe,
)
from stages.extraction.recipes.template import TemplateRecipe

AnyRecipe = (
    PlainRecipe
    | TemplateRecipe
    | PromptEolRecipe
    | FutureEolRecipe
    | PretendedCotRecipe
    | KnowledgeRecipe
    | MetaEolRecipe
    | ContrastiveRecipe
    | EchoRecipe
    | TokenPrependingRecipe
    | HtpRecipe
)
Recipe = Annotated[AnyRecipe, Field(discriminator="kind")]
