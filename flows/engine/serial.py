"""One node after the other, in this process: for notebooks, tests and small runs."""

from collections.abc import Mapping

from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import end, reuse_or_make
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome, Schedule
from permafrost.flows.graph import Graph, Node


class SerialEngine:
    """Needs no server and no threads."""

    name = "serial"
    n_workers = 1

    def threads_of(self, node: Node, context: RunContext) -> int:
        """Those of this process."""
        return context.threads_of(node)

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """Run the graph; returns how each node ended, by id."""
        schedule = Schedule(graph, context.in_the_way)
        display.begin(len(graph))
        while (node := schedule.next()) is not None:
            schedule.start(node)
            try:
                reused = reuse_or_make(node, context, display, context.threads_of(node))
            except Exception as error:
                end(schedule, node, "failed", error, context, display)
            else:
                end(schedule, node, "reused" if reused else "computed", None, context, display)
        assert schedule.finished, "a node never became ready"
        return schedule.outcomes
