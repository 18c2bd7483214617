"""Full fine-tuning: every weight of the backbone is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.finetune.tuning import OwnWeightsTuning

if TYPE_CHECKING:
    import torch

    from permafrost.stages.extraction.families import HasModel
    from permafrost.stages.finetune.tuned import Tuned


class Full(OwnWeightsTuning):
    """All weights of the backbone, word embeddings too; a tied weight is one. The backbone's own dropout is
    off, as it is wherever it runs."""

    kind: Literal["full"] = "full"

    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned:
        """Every parameter has a gradient from now on; nothing is drawn."""
        from permafrost.stages.finetune.own_weights import OwnWeights

        return OwnWeights(dict(backbone.model.named_parameters()))
