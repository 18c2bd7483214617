"""Weights of the backbone itself, trained in place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from permafrost.stages.finetune.tuned import Tuned

WEIGHTS = "model.safetensors"


class OwnWeights(Tuned):
    """Weights of the backbone itself."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Args: weights: those that are trained, by name."""
        for weight in weights.values():
            weight.requires_grad_(True)
        super().__init__(weights)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Nothing is drawn."""
        yield

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """By the names of the backbone's parameters, for `load_state_dict(..., strict=False)`."""
        save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
