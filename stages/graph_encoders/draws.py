"""Random draws in training, from generators that no other thread shares."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.heads.pyg_layers import draw_seed


class TrainingDraws(nn.Module):
    """Gives one generator per call of a module in training, seeded by the number of the call.

    The count is part of the state, so that a resumed fit draws the same numbers.
    """

    calls: Tensor

    def __init__(self, draw: torch.Generator) -> None:
        super().__init__()
        self.seed = draw_seed(draw)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self) -> torch.Generator | None:
        """The generator of this call; None in evaluation, where nothing is drawn."""
        if not self.training:
            return None
        self.calls += 1
        return torch.Generator(self.calls.device).manual_seed(self.seed + int(self.calls))


def dropout(
    rows: Float[Tensor, "n d"], p: float, generator: torch.Generator | None
) -> Float[Tensor, "n d"]:
    """Zero a share `p` of the numbers and scale the others by 1 / (1 - p); without generator, nothing."""
    if generator is None or p == 0:
        return rows
    kept = torch.empty_like(rows, requires_grad=False).bernoulli_(1 - p, generator=generator)
    return rows * kept / (1 - p)
