"""Probes: properties of stored features by layer or by threshold, measured without a backbone."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.probes.curves import Point, ProbeCurves
    from permafrost.stages.probes.geometry import GeometryConfig, chosen_texts, probe_geometry
    from permafrost.stages.probes.linear_probe import require_scorable
    from permafrost.stages.probes.task_score import TaskScoreConfig, probe_task
    from permafrost.stages.probes.token_graph import TokenGraphConfig, probe_token_graph

__getattr__ = late_names(__name__)

__all__ = [
    "GeometryConfig",
    "Point",
    "ProbeCurves",
    "TaskScoreConfig",
    "TokenGraphConfig",
    "chosen_texts",
    "probe_geometry",
    "probe_task",
    "probe_token_graph",
    "require_scorable",
]
