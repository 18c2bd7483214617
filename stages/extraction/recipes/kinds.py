"""All recipes, told apart by `kind`."""

from typing import Annotated

from pydantic import Field

from permafrost.stages.extraction.recipes.contrastive import ContrastiveRecipe
from permafrost.stages.extraction.recipes.echo import EchoRecipe
from permafrost.stages.extraction.recipes.htp import HtpRecipe
from permafrost.stages.extraction.recipes.meta_eol import MetaEolRecipe
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.prepending import TokenPrependingRecipe
from permafrost.stages.extraction.recipes.prompts import (
    FutureEolRecipe,
    KnowledgeRecipe,
    PretendedCotRecipe,
    PromptEolRecipe,
)
from permafrost.stages.extraction.recipes.template import TemplateRecipe

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
