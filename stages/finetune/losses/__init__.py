"""Losses of graph-text models, one file each."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.finetune.losses.alignment import InfoNceAlignment
    from permafrost.stages.finetune.losses.binary import BinaryLoss
    from permafrost.stages.finetune.losses.choice import ChoiceLoss
    from permafrost.stages.finetune.losses.loss import (
        ALIGNMENTS,
        GRAPH_TEXT_LOSSES,
        Alignment,
        AlignmentConfig,
        GraphTextLoss,
        GraphTextLossConfig,
        ScoreLoss,
        VectorLoss,
        default_graph_text_loss,
    )
    from permafrost.stages.finetune.losses.retrieval import RetrievalLoss

__getattr__ = late_names(__name__)

__all__ = [
    "ALIGNMENTS",
    "GRAPH_TEXT_LOSSES",
    "Alignment",
    "AlignmentConfig",
    "BinaryLoss",
    "ChoiceLoss",
    "GraphTextLoss",
    "GraphTextLossConfig",
    "InfoNceAlignment",
    "RetrievalLoss",
    "ScoreLoss",
    "VectorLoss",
    "default_graph_text_loss",
]
