"""A frozen backbone: only what stands on it is trained, and what a graph token comes from."""

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


class Probe(Tuning):
    """Nothing of the backbone is trained."""

    kind: Literal["probe"] = "probe"

    @property
    def changes_states(self) -> bool:
        """No: what is stored of texts holds."""
        return False

    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned | None:
        """Nothing; nothing is drawn either."""
        return None

    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """There are none."""
        return {}
