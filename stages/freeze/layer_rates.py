"""AdamW with one learning rate per layer on parameters that hold all layers."""

from collections.abc import Sequence

import torch
from torch import nn

from permafrost.stages.freeze.encoders import LayerAutoencoders


class LayerwiseAdamW(torch.optim.AdamW):
    """The update that one AdamW per autoencoder would make.

    A torch optimiser has one rate per parameter, so it is given each layer's row as a parameter of its
    own, which shares memory with the whole in value and in gradient.
    """

    def __init__(
        self, autoencoders: LayerAutoencoders, rates: Sequence[float], weight_decay: float
    ) -> None:
        self._gradients = {
            parameter: torch.zeros_like(parameter) for parameter in autoencoders.parameters()
        }
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
        groups = [
            {"params": [self._row(whole, row) for whole in wholes], "lr": rate}
            for (wholes, row), rate in zip(autoencoders.by_layer(), rates, strict=True)
        ]
        super().__init__(groups, weight_decay=weight_decay, fused=True)

    def _row(self, whole: nn.Parameter, row: int) -> nn.Parameter:
        part = nn.Parameter(whole.detach()[row])
        part.grad = self._gradients[whole][row]
        return part

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients where they lie, whatever is asked for: the rows share their memory."""
        for gradient in self._gradients.values():
            gradient.zero_()
