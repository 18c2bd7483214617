"""Encoder: a trained head, or a method without training, used on texts directly; and its export."""

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
    FittedHead,
    find_fitted,
    load_encoder,
    method_encoder,
    require_nothing_fitted,
)
from permafrost.stages.encoder.module_form import load_exported
from permafrost.stages.encoder.upgrade import Upgraded, upgrade_exported

__all__ = [
    "FINETUNE",
    "Encoder",
    "Exported",
    "FittedGraphText",
    "FittedHead",
    "Form",
    "GraphTextEncoder",
    "GraphsOfTexts",
    "Upgraded",
    "export_head",
    "find_fitted",
    "find_graph_text",
    "graphs_config",
    "graphs_record",
    "load_encoder",
    "load_exported",
    "load_graph_text",
    "method_encoder",
    "require_nothing_fitted",
    "upgrade_exported",
]
