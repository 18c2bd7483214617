"""What the manifest of a score says."""

from collections.abc import Mapping
from typing import Any

from permafrost.flows.context import BackboneSource
from permafrost.flows.graph import Node

NAMES = ("method", "task", "seed")


def score_summary(metrics: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """Of what it is, the metric, and its value on dev and test."""
    names = {n: node.run_facts[n] for n in NAMES if n in node.run_facts}
    return {**names, **{k: metrics[k] for k in ("metric", "dev", "test")}}


def base_summary(node: Node) -> dict[str, str]:
    """Where the backbone lay that a node trained, to find it again."""
    where = BackboneSource.model_validate(node.run_facts["backbone"])
    return {"backbone": where.source, "revision": where.revision}
