"""Every node is a task run of Prefect, named by what it is, with the nodes it needs as its inputs.

Task runs are threads of this process; where they have their nodes computed is up to a `Place`. Prefect's task
runners wait for upstream futures inside a worker thread, so a node is submitted only when it is ready, with
futures that have finished: Prefect's UI draws its graph from them.
"""

import contextlib
import queue
import time
from collections.abc import Generator, Mapping
from typing import Any, Protocol

from prefect import tags, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from permafrost.flows.context import RunContext
from permafrost.flows.engine.curable import DELAYS_S, is_curable
from permafrost.flows.engine.engine import end, make_with
from permafrost.flows.engine.late_imports import import_late_libraries
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.engine.run_log import log_computed, log_reused
from permafrost.flows.engine.schedule import Outcome, Schedule
from permafrost.flows.graph import Graph, Node
from permafrost.flows.stage import stage_of
from permafrost.flows.stopping import STOP
from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import Progress

_POLL_S = 0.1


class ClusterGoneError(PermafrostError):
    """Nothing can be computed where nodes are computed, now or any more; no fault of any of them."""


class Place(Protocol):
    """Where nodes are computed."""

    @property
    def n_nodes(self) -> int:
        """Nodes that are under way at the same time, at most."""
        ...

    def in_the_way(self, one: Node, other: Node) -> bool:
        """Whether two nodes cannot be under way at the same time."""
        ...

    def threads_of(self, node: Node) -> int:
        """torch's threads in a node; called in the engine's own thread, as each thread has its own number."""
        ...

    def make(self, node: Node, progress: Progress, threads: int) -> None:
        """Compute a node and publish it; called in the thread of its task run."""
        ...

    def give_up(self) -> None:
        """The run was interrupted (Ctrl-C in a program that does not listen to signals itself): let `make`
        raise `Stopped` soon, wherever that is possible."""
        ...


class ThisProcess:
    """Nodes run in threads of this process and share its processors.

    Args:
        context: of the run.
        n_nodes: nodes side by side, at most.
    """

    def __init__(self, context: RunContext, n_nodes: int) -> None:
        self._context, self.n_nodes = context, n_nodes

    def in_the_way(self, one: Node, other: Node) -> bool:
        """Whether both need what there is one of."""
        return self._context.in_the_way(one, other)

    def threads_of(self, node: Node) -> int:
        """Those of this process."""
        return self._context.threads_of(node)

    def make(self, node: Node, progress: Progress, threads: int) -> None:
        """Compute a node here."""
        make_with(threads, node, self._context, progress)

    def give_up(self) -> None:
        """What runs here ends by itself."""


def _may_help(task: Any, run: Any, state: Any) -> bool:
    error = state.result(raise_on_failure=False)
    return not isinstance(error, ClusterGoneError) and is_curable(error)


@task(
    name="stage",
    task_run_name="{label}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=len(DELAYS_S),
    retry_delay_seconds=list(DELAYS_S),
    retry_condition_fn=_may_help,
)
def run_node(
    label: str, node: Node, context: RunContext, display: Display, place: Place, threads: int
) -> Any:
    """Run one node; its state is named `Cached` when the artifact was there already.

    Prefect's own result cache is off: the artifact store alone says what is done.
    """
    STOP.check()
    if stage_of(node).is_done(node, context):
        log_reused(node, context)
        return Completed(name="Cached", message=f"reused {node.id}")
    started = time.monotonic()
    place.make(node, NodeProgress(display, node.label), threads)
    log_computed(node, context, time.monotonic() - started)
    return Completed(message=f"published {node.id}")


class PrefectEngine:
    """For use inside a flow run; nodes are computed in this process.

    Args:
        n_workers: maximum number of nodes at a time.
    """

    name = "prefect"

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers

    def threads_of(self, node: Node, context: RunContext) -> int:
        """Those of this process."""
        return context.threads_of(node)

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """Run the graph; returns how each node ended, by id."""
        if self.n_workers > 1:
            import_late_libraries(node.stage for node in graph)
        return run_at(ThisProcess(context, self.n_workers), graph, context, display)


def run_at(
    place: Place, graph: Graph, context: RunContext, display: Display
) -> Mapping[str, Outcome]:
    """Run every node of a graph as a task run, computed at `place`; how each node ended, by id.

    Raises:
        ClusterGoneError: nothing can be computed there any more.
    """
    schedule = Schedule(graph, place.in_the_way)
    futures: dict[str, PrefectFuture[Any]] = {}
    ended: queue.SimpleQueue[Node] = queue.SimpleQueue()
    display.begin(len(graph))
    with ThreadPoolTaskRunner() as runner, _given_up_together(place):
        while not schedule.finished:
            while schedule.n_running < place.n_nodes and (node := schedule.next()):
                schedule.start(node)
                with tags(f"stage:{node.stage}"):
                    futures[node.id] = runner.submit(
                        run_node,
                        {
                            "label": node.label,
                            # quote: Prefect looks for futures inside parameters.
                            "node": quote(node),
                            "context": quote(context),
                            "display": quote(display),
                            "place": quote(place),
                            "threads": place.threads_of(node),
                        },
                        wait_for=[futures[ref] for ref in node.upstream],
                    )
                futures[node.id].add_done_callback(lambda _, node=node: ended.put(node))
            node = _wait(ended)
            futures[node.id].wait()  # only this brings its final state here
            state = futures[node.id].state
            if state.is_completed():
                how = "reused" if state.name == "Cached" else "computed"
                end(schedule, node, how, None, context, display)
            else:
                error = state.result(raise_on_failure=False)
                if isinstance(error, ClusterGoneError):
                    raise error
                end(schedule, node, "failed", error, context, display)
    return schedule.outcomes


@contextlib.contextmanager
def _given_up_together(place: Place) -> Generator[None]:
    """Threads of task runs learn of what was raised here, in the main thread: the runner waits for them."""
    try:
        yield
    except BaseException:
        place.give_up()
        raise


def _wait(ended: "queue.SimpleQueue[Node]") -> Node:
    while True:
        STOP.check()
        try:
            return ended.get(timeout=_POLL_S)
        except queue.Empty:
            continue
