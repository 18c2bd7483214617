"""The methods of an experiment, told apart by `kind`."""

from typing import Annotated

from pydantic import Field

from permafrost.flows.methods.embed import EmbedMethod
from permafrost.flows.methods.head import HeadMethod
from permafrost.flows.methods.layers import LayersMethod
from permafrost.flows.methods.linear import LinearMethod
from permafrost.flows.methods.surface import BagOfWordsMethod, LengthMethod

__all__ = ["MethodConfig"]

MethodConfig = Annotated[
    HeadMethod | EmbedMethod | LinearMethod | LayersMethod | LengthMethod | BagOfWordsMethod,
    Field(discriminator="kind"),
]
