"""Probes: what stored features are like, by layer or by threshold, without a backbone."""

from stages.probes.curves import Point, ProbeCurves
from stages.probes.geometry import GeometryConfig, chosen_texts, probe_geometry
from stages.probes.graph_time import GraphTimeConfig, probe_graph_time
from stages.probes.linear_probe import require_scorable
from stages.probes.task_score import TaskScoreConfig, probe_task
from stages.probes.token_graph import TokenGraphConfig, probe_token_graph

__all__ = [
    "GeometryConfig",
    "GraphTimeConfig",
    "Point",
    "ProbeCurves",
    "TaskScoreConfig",
    "TokenGraphConfig",
    "chosen_texts",
    "probe_geometry",
    "probe_graph_time",
    "probe_task",
    "probe_token_graph",
    "require_scorable",
]
