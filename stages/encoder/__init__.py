"""Encoder: a trained head, or a method without training, used on texts directly; and its export."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.encoder.answers import require_sides
    from permafrost.stages.encoder.encoder import Encoder
    from permafrost.stages.encoder.export import Exported, Form, export_head
    from permafrost.stages.encoder.graph_text import (
        FINETUNE,
        FittedGraphText,
        GraphsOfTexts,
        find_graph_text,
        graphs_config,
        graphs_record,
    )
    from permafrost.stages.encoder.graph_text_encoder import GraphTextEncoder, load_graph_text
    from permafrost.stages.encoder.load import (
        FittedAnswers,
        FittedHead,
        find_answers,
        find_fitted,
        load_encoder,
        method_encoder,
        require_nothing_fitted,
    )
    from permafrost.stages.encoder.module_form import load_exported
    from permafrost.stages.encoder.predicted import Predicted, PredictedClasses, PredictedScores
    from permafrost.stages.encoder.predictions_file import (
        predictions_of,
        require_predictions_place,
        write_predictions,
    )
    from permafrost.stages.encoder.tuned import TunedEncoder, is_tuned_head, load_tuned
    from permafrost.stages.encoder.upgrade import Upgraded, upgrade_exported

__getattr__ = late_names(__name__)

__all__ = [
    "FINETUNE",
    "Encoder",
    "Exported",
    "FittedAnswers",
    "FittedGraphText",
    "FittedHead",
    "Form",
    "GraphTextEncoder",
    "GraphsOfTexts",
    "Predicted",
    "PredictedClasses",
    "PredictedScores",
    "TunedEncoder",
    "Upgraded",
    "export_head",
    "find_answers",
    "find_fitted",
    "find_graph_text",
    "graphs_config",
    "graphs_record",
    "is_tuned_head",
    "load_encoder",
    "load_exported",
    "load_graph_text",
    "load_tuned",
    "method_encoder",
    "predictions_of",
    "require_nothing_fitted",
    "require_predictions_place",
    "require_sides",
    "upgrade_exported",
    "write_predictions",
]
