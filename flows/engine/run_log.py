"""What a node tells Prefect's log, in the thread of its task run: its scores, and the seconds it took."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.stages.metrics.records import METRICS
from permafrost.stages.report.entries import hundredths, seconds
from permafrost.storage.durable import read_json
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import visible

_SPLITS = ("test", "dev")


def log_computed(node: Node, context: RunContext, took_s: float) -> None:
    """The seconds of a node, and its scores if it has some."""
    scores = _scores(node, context)
    said = f"{scores}; {seconds(took_s)} s" if scores else f"{seconds(took_s)} s"
    get_run_logger().info("%s: %s", visible(node.label), said)


def log_reused(node: Node, context: RunContext) -> None:
    """The scores of a node that has some."""
    if scores := _scores(node, context):
        get_run_logger().info("%s: %s; reused", visible(node.label), scores)


def _scores(node: Node, context: RunContext) -> str:
    """`accuracy 87.3 on test, 88.1 on dev`; empty if the node scores nothing."""
    try:
        manifest = context.artifacts.manifest(node.ref)
        known = manifest.summary
        if "test" not in known and METRICS in manifest.files:
            known = read_json(context.artifacts.folder(node.ref) / METRICS)
    except (PermafrostError, OSError):
        return ""  # whoever needs the artifact says what is wrong with it
    return scores_text(known)


def scores_text(known: Mapping[str, Any]) -> str:
    """The scores among what is known of an artifact, times 100; empty if there are none."""
    found = [(split, known[split]) for split in _SPLITS if known.get(split) is not None]
    if "metric" not in known or not found or found[0][0] != "test":
        return ""
    said = ", ".join(f"{hundredths(value)} on {split}" for split, value in found)
    return f"{visible(known['metric'])} {said}"
