"""Rebuilding a report, without an orchestrator."""

from collections.abc import Sequence
from pathlib import Path

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import FEATURES, Node
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.paths import require_writable
from permafrost.storage.progress import SilentProgress


def rebuild_report(nodes: ExperimentGraph, home: Path) -> Path:
    """Rebuild the report of finished results and return its path. One that exists stays until there is
    another.

    Raises:
        NotFoundError: a result, or anything else that the report reads, does not exist.
        InputError: the home cannot be written.
    """
    context, node = RunContext(home, nodes.experiment.runtime), nodes.report
    results = [*nodes.results.values(), *nodes.evaluations.values()]
    _require(results, "results", context)
    made = (i.ref for i in node.inputs if not i.ref.startswith(FEATURES))
    _require([nodes.graph[ref] for ref in dict.fromkeys(made)], "inputs of the report", context)
    page = context.artifacts.folder(node.ref) / "report.html"
    try:
        require_writable(page.parent.parent, "the report")
    except InputError as error:
        if page.is_file():
            raise InputError(
                f"the report is published, and cannot be built again where it is ({error}); the one that is "
                f"there is {page}"
            ) from error
        raise
    make(node, context, SilentProgress(), again=True)
    return page


def _require(needed: Sequence[Node], what: str, context: RunContext) -> None:
    missing = [n.label for n in needed if not context.artifacts.is_done(n.ref)]
    if missing:
        raise NotFoundError(
            f"{len(missing)} of {len(needed)} {what} do not exist (first: {missing[0]}); run "
            f"'permafrost run' on this experiment first"
        )
