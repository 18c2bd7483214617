"""Encoder: a trained head, or a method without training, used on texts directly; and its export."""

from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.export import Exported, Form, export_head
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
    "Encoder",
    "Exported",
    "FittedHead",
    "Form",
    "Upgraded",
    "export_head",
    "find_fitted",
    "load_encoder",
    "load_exported",
    "method_encoder",
    "require_nothing_fitted",
    "upgrade_exported",
]
