"""Full fine-tuning: every weight of the backbone is trained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from permafrost.stages.extraction.families import HasModel
from permafrost.stages.finetune.tuning import Tuned, Tuning

WEIGHTS = "model.safetensors"


class Full(Tuning):
    """All weights of the backbone, word embeddings too; a tied weight is one. The backbone's own dropout is
    off, as it is wherever it runs."""

    kind: Literal["full"] = "full"

    @property
    def changes_states(self) -> bool:
        """Of every text."""
        return True

    @property
    def usual_lr(self) -> float:
        """GLOT's (tables 5 and 9)."""
        return 2e-5

    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned:
        """Every parameter has a gradient from now on; nothing is drawn."""
        return OwnWeights(dict(backbone.model.named_parameters()))

    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """By the names of the backbone's parameters."""
        return load_file(folder / WEIGHTS)


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
