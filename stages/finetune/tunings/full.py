"""Full fine-tuning: every weight of the backbone is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from permafrost.stages.finetune.tuning import Tuning

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permafrost.stages.extraction.families import HasModel
    from permafrost.stages.finetune.tuned import Tuned


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
        from permafrost.stages.finetune.own_weights import OwnWeights

        return OwnWeights(dict(backbone.model.named_parameters()))

    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """By the names of the backbone's parameters."""
        from safetensors.torch import load_file

        from permafrost.stages.finetune.own_weights import WEIGHTS

        return load_file(folder / WEIGHTS)
