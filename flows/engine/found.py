"""The engine of a run that finds everything done: it computes nothing, and needs nothing to do so."""

from collections.abc import Mapping

from permafrost.flows.context import RunContext
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.graph import Graph, Node
from permafrost.storage.errors import RemovedError


class FoundEngine:
    """For a graph of which every node was seen to be done."""

    name = "serial"
    n_workers = 1

    def threads_of(self, node: Node, context: RunContext) -> None:
        """None: nothing is computed, and to count them torch would be imported."""

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """Every node as reused, by id.

        Raises:
            RemovedError: one is not done any more.
        """
        for node in graph:
            if not context.artifacts.is_done(node.ref):
                raise RemovedError(
                    f"{node.ref} ({node.label}) was removed since this run looked what there is "
                    "(by gc, drop or "
                    "repair); run the same command again, which makes it again"
                )
        return {node.id: Outcome(node, "reused") for node in graph}
