"""The methods of an experiment, told apart by `kind`."""

from typing import Annotated

from pydantic import Field

from flows.methods.embed import EmbedMethod
from flows.methods.head import HeadMethod
from flows.methods.layers import LayersMethod
from flows.methods.linear import LinearMethod
from flows.methods.surface import BagOfWordsMethod, LengthMethod

__all__ = ["MethodConfig"]

MethodConfig = Annotated[
    HeadMethod | EmbedMethod | LinearMethod | LayersMethod | LengthMethod | BagOfWordsMethod,
    Field(discriminator="kind"),
]
