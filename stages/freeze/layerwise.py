"""Training one network per layer of a backbone at once, as if each were trained alone."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.freeze.encoders import PretrainedEncoders
from permafrost.storage.errors import InputError


class LayerwiseAdamW(torch.optim.AdamW):
    """AdamW with the updates that a separate AdamW per layer would make.

    A torch optimiser has one learning rate per parameter, so it gets each layer's row as a parameter, which
    shares the memory of value and gradient with the whole.
    """

    def __init__(
        self,
        model: PretrainedEncoders,
        rates: Sequence[float],
        weight_decay: float,
        shared: Sequence[nn.Parameter] = (),
    ) -> None:
        """Args: model: a row of each parameter for each layer. rates: of the layers. shared: what all layers
        share, which has the first one's rate."""
        self._gradients = {
            parameter: torch.zeros_like(parameter) for parameter in model.parameters()
        }
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
        groups = [
            {"params": [self._row(whole, row) for whole in wholes], "lr": rate}
            for (wholes, row), rate in zip(model.by_layer(), rates, strict=True)
        ]
        if shared:
            groups.append({"params": list(shared), "lr": rates[0]})
        super().__init__(groups, weight_decay=weight_decay, fused=True)

    def _row(self, whole: nn.Parameter, row: int) -> nn.Parameter:
        part = nn.Parameter(whole.detach()[row])
        part.grad = self._gradients[whole][row]
        return part

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients in place, even with `set_to_none`: the rows share their memory."""
        for gradient in self._gradients.values():
            gradient.zero_()


@torch.no_grad()
def keep_layers(model: PretrainedEncoders, kept: dict[str, Tensor], layers: Sequence[int]) -> None:
    """Copy the rows of these layers into what is kept, by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_layer = model.by_layer()
    for layer in layers:
        parameters, row = by_layer[layer]
        for parameter in parameters:
            kept[names[id(parameter)]][row].copy_(parameter[row])


def rates_by_layer(lr: float, n_layers: int) -> list[float]:
    """Learning rate of layer i of L, from 0: lr * (1 + i / L), as in FREEZE!'s notebooks."""
    return [lr * (1 + layer / n_layers) for layer in range(n_layers)]


def held_out(n: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to train on and those held out, both sorted; of two or more, at least one each."""
    n_dev = min(max(1, round(share * n)), n - 1)
    # A separate random stream, so that the split is not the permutation that orders the batches.
    order = np.random.default_rng([seed, 1 << 32]).permutation(n)
    return np.sort(order[n_dev:]), np.sort(order[:n_dev])


def held_out_pairs(
    pairs: Int64[np.ndarray, "n 2"], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of pairs to train on and of those held out, both sorted; no text is on both sides.

    First texts are drawn, and all their pairs held out, until these are the share. Other pairs that have a
    text of a held-out pair are on neither side.

    Raises:
        InputError: nothing is left to train on.
    """
    firsts, counts = np.unique(pairs[:, 0], return_counts=True)
    order = np.random.default_rng([seed, 1 << 32]).permutation(len(firsts))
    # The fewest first texts whose pairs are the share.
    enough = int(np.searchsorted(np.cumsum(counts[order]), share * len(pairs))) + 1
    is_dev = np.isin(pairs[:, 0], firsts[order[:enough]])
    is_seen = np.isin(pairs, pairs[is_dev]).any(axis=1)
    train, dev = np.flatnonzero(~is_seen), np.flatnonzero(is_dev)
    if not len(train):
        raise InputError(
            f"each of the {len(pairs)} train pairs shares a text with the {len(dev)} that were to be held "
            f"out (dev_share {share}), so that none is left to train on; lower dev_share, or give pairs of "
            "other texts"
        )
    return train, dev
