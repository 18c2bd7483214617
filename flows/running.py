"""Running an experiment: checked first, then node by node; whatever ran it, the result and its record."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.checks import check
from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.found import FoundEngine
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.engine_choice import Serial, parse_engine
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.gaps import report_with_gaps
from permafrost.flows.graph import Graph, Node
from permafrost.flows.home import open_home
from permafrost.flows.preview import Preview
from permafrost.flows.recording import recorded
from permafrost.flows.server.named import server_is_named
from permafrost.flows.stage import stage_of
from permafrost.flows.terminal import Terminal, render, render_fitting
from permafrost.storage.drafts import remove_drafts_of_dead_processes
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError, RemovedError
from permafrost.storage.removal import removal_named


@dataclass(kw_only=True)
class Counts:
    """What a run came to."""

    computed: Counter[str] = field(default_factory=Counter)
    """Nodes computed, by stage."""
    reused: Counter[str] = field(default_factory=Counter)
    """Nodes reused, by stage."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Counts":
        """Of nodes that are all done."""
        ended = list(outcomes)
        return Counts(
            computed=Counter(o.node.stage for o in ended if o.state == "computed"),
            reused=Counter(o.node.stage for o in ended if o.state == "reused"),
        )

    @classmethod
    def reusing(cls, nodes: Iterable[Node]) -> "Counts":
        """Of nodes that were all done before."""
        return Counts(reused=Counter(node.stage for node in nodes))


@dataclass
class PipelineResult(Counts):
    """The result of a run."""

    title: str
    report: Path
    """The HTML report."""
    run: str
    """Its name in the history, `mine@2`."""

    def table(self) -> Table:
        """The results, for a terminal."""
        return render(self.title, self.results())

    def tables(self, console: Console) -> list[Table]:
        """The results, in as many tables as needed to fit the width of `console`."""
        return render_fitting(self.title, self.results(), console)

    def notes(self) -> list[str]:
        """Notes to print below the results."""
        return self.results()["notes"]

    def results(self) -> dict[str, Any]:
        """The numbers of the report: `summary.json`."""
        return read_json(self.report.with_name("summary.json"))


@dataclass(frozen=True)
class Checked:
    """An experiment that was found right, and what was read to find that out."""

    nodes: ExperimentGraph
    context: Preview
    overrides: tuple[str, ...]


def checked(experiment: str | dict[str, Any], home: str, overrides: Sequence[str]) -> Checked:
    """Lay an experiment out and check it; once more if something that it read was removed meanwhile, as the
    run is not recorded yet.

    Raises:
        InputError: what `check` finds.
    """
    with Display(Terminal()) as display:
        folder = open_home(home, NodeProgress(display, f"pull {home}"))
    source = Path(experiment) if isinstance(experiment, str) else experiment
    nodes = build_graph(load_experiment(source, overrides))
    try:
        with removal_named(folder):
            context = check_showing(nodes, folder)
    except RemovedError:
        context = check_showing(nodes, folder)
    return Checked(nodes, context, tuple(overrides))


def reused(found: Checked) -> PipelineResult | None:
    """The result of an experiment of which everything is done; None if something is left to do, or if a
    server of Prefect is named, which is to record the run."""
    nodes, context = found.nodes, found.context
    if server_is_named() or not all(stage_of(n).is_done(n, context) for n in nodes.graph):
        return None
    return run_graph(nodes, context, FoundEngine(), Terminal(), found.overrides)


def computed_here(found: Checked, engine: str | None) -> PipelineResult | None:
    """The result of an experiment that runs node by node in this process; None if the engine is another one,
    or if a server of Prefect is named, which is to record the run.

    Args:
        found: what was checked.
        engine: its name, else the experiment's counts.

    Raises:
        PermafrostError: as `run_graph`.
    """
    name = engine or found.nodes.experiment.runtime.engine
    if name is None or parse_engine(name) != Serial() or server_is_named():
        return None
    return run_graph(found.nodes, found.context, SerialEngine(), Terminal(), found.overrides)


def check_showing(nodes: ExperimentGraph, home: Path) -> Preview:
    """As `check`; the corpora that it builds show how far they are."""
    with Display(Terminal()) as display:
        return check(nodes, home, partial(NodeProgress, display))


def run_serially(
    experiment: Path | Mapping[str, Any], home: Path, overrides: Sequence[str] = ()
) -> PipelineResult:
    """Run a whole experiment in this process, node by node, without server, threads or Prefect."""
    nodes = build_graph(load_experiment(experiment, overrides))
    return run_graph(nodes, check_showing(nodes, home), SerialEngine(), Terminal(), overrides)


def run_graph(
    nodes: ExperimentGraph,
    context: RunContext,
    engine: Engine,
    console: Console,
    overrides: Sequence[str] = (),
) -> PipelineResult:
    """Run every node that is not done; a failed node stops only the nodes that depend on it.

    Args:
        nodes: what `check` found right.
        context: from `check`.
        engine: what runs them.
        console: where progress and failures are shown.
        overrides: those that the experiment was read with, for the record of the run.

    Raises:
        PermafrostError: nodes failed; everything that does not depend on them is finished and published.
    """
    remove_drafts_of_dead_processes(context.home)
    with recorded(nodes, context, engine, overrides) as run:
        with Display(console) as display:
            outcomes = engine.run(nodes.graph, context, display)
        if failed := [o for o in outcomes.values() if o.state == "failed"]:
            partial_report = report_with_gaps(nodes, context, outcomes)
            run.failed(outcomes, partial_report, _first(failed).error)
            raise_first(failed, outcomes, partial_report)
        report = context.artifacts.open(nodes.report.ref)  # fetched, if another machine made it
        run.done(outcomes, report / "report.html")
    # Not in the order in which they ended.
    counts = Counts.of(outcomes[node.id] for node in nodes.graph.ordered())
    return PipelineResult(
        title=nodes.experiment.report.title,
        report=report / "report.html",
        run=run.name,
        computed=counts.computed,
        reused=counts.reused,
    )


def backbone_part(graph: Graph) -> Graph:
    """The nodes that run a backbone, and all that they need: corpora, extractions, fine-tunings."""
    wanted: set[str] = set()
    for node in reversed(graph.ordered()):
        if node.resources.backbone or node.id in wanted:
            wanted |= {node.id, *node.upstream}
    return Graph(node for node in graph if node.id in wanted)


def not_done(graph: Graph, context: RunContext) -> list[Node]:
    """Those nodes of a graph that would run."""
    return [node for node in graph if not stage_of(node).is_done(node, context)]


def run_backbone_part(found: Checked, engine: Engine, console: Console) -> Counts:
    """Run what needs the backbone and nothing else, so that the rest can run where there is none.

    What is made is kept by garbage collection until the rest has run.

    Raises:
        PermafrostError: nodes failed; everything that does not depend on them is finished and published.
    """
    nodes, context = found.nodes, found.context
    remove_drafts_of_dead_processes(context.home)
    with recorded(nodes, context, engine, found.overrides) as run:
        with Display(console) as display:
            outcomes = engine.run(backbone_part(nodes.graph), context, display)
        if failed := [o for o in outcomes.values() if o.state == "failed"]:
            run.failed(outcomes, None, _first(failed).error)
            raise_first(failed, outcomes, None)
        run.extracted(outcomes)
    return Counts.of(outcomes.values())


def raise_first(
    failed: Sequence[Outcome], outcomes: Mapping[str, Outcome], report: Path | None
) -> NoReturn:
    """Raise the error of a failed node, preferably one that is not a user's error, and add how many nodes
    failed and were skipped, where the report of the rest is, and how to resume."""
    first = _first(failed)
    error = first.error
    assert error is not None, "a failed node has an error"
    error.add_note(f"while running '{first.node.label}'")
    if others := [o.node.label for o in failed if o is not first]:
        error.add_note(f"{len(others)} more failed: {', '.join(others[:3])}")
    n_skipped = sum(o.state == "skipped" for o in outcomes.values())
    if n_skipped:
        error.add_note(f"{n_skipped} skipped, which depend on failed ones")
    if report is not None:
        error.add_note(f"everything else is finished; a report with the gaps marked is {report}")
    error.add_note("the same command goes on from here")
    raise error


def _first(failed: Sequence[Outcome]) -> Outcome:
    """The failure to tell of, preferably no error of the user's."""
    own = [o for o in failed if not isinstance(o.error, InputError)]
    return (own or list(failed))[0]
