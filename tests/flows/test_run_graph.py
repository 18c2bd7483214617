"""What a run says of its nodes does not depend on which of them ended first."""

from collections.abc import Mapping
from pathlib import Path

from permafrost.flows.build import build_graph
from permafrost.flows.context import RunContext
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.graph import Graph
from permafrost.flows.running import check_showing, run_graph
from permafrost.flows.terminal import Terminal
from tests.flows.test_cli import Cli
from tests.flows.test_cli import cli as cli
from tests.flows.test_cli import finished as finished
from tests.flows.test_cli import texts as texts


class LastFirst(SerialEngine):
    """Nodes as they might have ended: each after those that need it."""

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        done = super().run(graph, context, display)
        return {id: done[id] for id in reversed(list(done))}


def test_stages_are_counted_in_the_order_of_the_graph(finished: Cli, experiment_file: Path) -> None:
    nodes = build_graph(load_experiment(experiment_file))
    context = check_showing(nodes, finished.home)
    said = [run_graph(nodes, context, e, Terminal()).reused for e in (SerialEngine(), LastFirst())]
    stages = list(dict.fromkeys(node.stage for node in nodes.graph.ordered()))
    assert [list(counted) for counted in said] == [stages, stages]
