"""The base class of the layers on the token graph."""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn


class Convolution(nn.Module, ABC):
    """Computes new token vectors from those of the neighbours."""

    d_out: int
    """Output width."""

    @abstractmethod
    def forward(self, tokens: Float[Tensor, "t d"], graph: Any) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation.

        Args:
            tokens: of all texts.
            graph: from `Conv.graph`.
        """
