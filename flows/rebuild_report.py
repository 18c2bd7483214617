"""Rebuilding a report, without an orchestrator."""

from pathlib import Path

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import make
from permafrost.storage.errors import NotFoundError
from permafrost.storage.progress import SilentProgress


def rebuild_report(nodes: ExperimentGraph, home: Path) -> Path:
    """Rebuild the report of finished results and return its path.

    Raises:
        NotFoundError: a result does not exist yet.
    """
    context, node = RunContext(home, nodes.experiment.runtime), nodes.report
    results = [*nodes.results.values(), *nodes.evaluations.values()]
    missing = [n.label for n in results if not context.artifacts.is_done(n.ref)]
    if missing:
        raise NotFoundError(
            f"{len(missing)} of {len(results)} results do not exist yet (first: {missing[0]}); run "
            f"'permafrost run' on this experiment first"
        )
    if context.artifacts.is_done(node.ref):
        context.artifacts.remove(node.ref)
    make(node, context, SilentProgress())
    return context.artifacts.folder(node.ref) / "report.html"
