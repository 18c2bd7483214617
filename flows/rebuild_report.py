"""Building a report again, without an orchestrator."""

from pathlib import Path

from flows.dag import Dag
from flows.provenance import provenance
from storage.errors import NotFoundError
from storage.progress import SilentProgress


def rebuild_report(dag: Dag) -> Path:
    """Make the report of finished results anew and return its path.

    Raises:
        NotFoundError: a result is not there yet.
    """
    results = [*dag.result_nodes.values(), *dag.evaluation_nodes.values()]
    missing = [n.label for n in results if not dag.artifacts.is_done(n.spec.ref)]
    if missing:
        raise NotFoundError(
            f"{len(missing)} of {len(results)} results are not there yet (first: {missing[0]}); run "
            f"'permafrost run' on this experiment first"
        )
    node = dag.report_node
    if dag.artifacts.is_done(node.spec.ref):
        dag.artifacts.remove(node.spec.ref)
    with dag.artifacts.publishing(node.spec, provenance()) as draft:
        node.make(draft, SilentProgress())
    return dag.artifacts.folder(node.spec.ref) / "report.html"
