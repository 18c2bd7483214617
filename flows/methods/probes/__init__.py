"""The probes of an experiment: what is measured of a backbone and its features, told apart by `kind`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from permafrost.flows.methods.probes.geometry import GeometryProbe
from permafrost.flows.methods.probes.graph_time import GraphTimeProbe
from permafrost.flows.methods.probes.layers import LayerProbe
from permafrost.flows.methods.probes.logit_lens import LogitLensProbe
from permafrost.flows.methods.probes.next_token import NextTokenProbe
from permafrost.flows.methods.probes.probe import Probe
from permafrost.flows.methods.probes.sensitivity import SensitivityProbe
from permafrost.flows.methods.probes.task_score import TaskScoreProbe
from permafrost.flows.methods.probes.token_graph import TokenGraphProbe

__all__ = ["LayerProbe", "Probe", "ProbeConfig"]


def _default_kind(value: Any) -> Any:
    return {"kind": "layers", **value} if isinstance(value, dict) and "kind" not in value else value


ProbeConfig = Annotated[
    LayerProbe
    | TaskScoreProbe
    | GeometryProbe
    | TokenGraphProbe
    | GraphTimeProbe
    | NextTokenProbe
    | LogitLensProbe
    | SensitivityProbe,
    Field(discriminator="kind"),
    BeforeValidator(_default_kind),
]
"""One section of `probes`; `layers` unless it says which kind."""
