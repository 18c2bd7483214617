"""Nodes are computed by Dask workers: processes of this machine, or of others that see the same home.

Every node is a task run of Prefect's as with the engine `prefect`: a thread of this process, which has the
node computed by a worker and waits for it. So Prefect needs to be reached from here only, and what a worker
tells (progress, warnings, errors) is heard in the thread of the task run that it belongs to.
"""

from collections.abc import Mapping

from permafrost.flows.context import RunContext
from permafrost.flows.engine.asking import Tasks
from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.engine.engine import make_with
from permafrost.flows.engine.hearing import Heard, log_failure
from permafrost.flows.engine.in_worker import compute, threads_of_workers
from permafrost.flows.engine.prefect import run_at
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine.segments import SegmentsInWorkers
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph, Node
from permafrost.flows.threads import n_processors
from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import Progress
from permafrost.storage.replica import replica_of

WAITING = 2
"""Nodes under way for each worker: while one is computed, the next one is on its way."""
ALWAYS_USEFUL = 2
"""Workers of a cluster on this machine, however few its processors: one goes on while another is lost."""


class DaskEngine:
    """For use inside a flow run.

    Args:
        where: an existing scheduler, or a cluster on this machine for as long as the run lasts.
        n_workers: of the cluster on this machine, of which no more are started than it has processors, as
            workers that share one are slower (docs/LOG.md); a scheduler has its own.
    """

    name = "dask"

    def __init__(self, where: Dask, n_workers: int) -> None:
        self._where, self._asked = where, n_workers
        useful = min(n_workers, max(ALWAYS_USEFUL, n_processors()))
        self.n_workers = useful if where.scheduler is None else 0

    def threads_of(self, node: Node, context: RunContext) -> int:
        """The same for all, whatever runs beside them."""
        return threads_of_workers(context.runtime)

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """How each node ended, by id.

        Raises:
            NoSchedulerError: no scheduler answers.
            ClusterGoneError: it is gone, or none of its workers can stand in for this process.
        """
        if self._where.scheduler is None and self.n_workers < self._asked:
            display.tell(
                f"{self.n_workers} Dask workers and not {self._asked}: this process may use {n_processors()} "
                "processors, and workers that share one are slower; for more, start a scheduler and give "
                "its address"
            )
        if self._where.scheduler is not None and replica_of(context.home) is not None:
            display.tell(
                "the home is on an object store: extractions run in this process, which therefore needs the "
                "GPU; Dask's workers compute the other stages"
            )
        with Cluster(self._where, self.n_workers, context, display) as cluster:
            tasks = Tasks(cluster)
            context.segments = SegmentsInWorkers(cluster, tasks, context)
            return run_at(Workers(cluster, tasks, context), graph, context, display)


class Workers:
    """Has nodes computed on a cluster (prefect.Place), and here what is built already, or only shares out
    segments."""

    def __init__(self, cluster: Cluster, tasks: Tasks, context: RunContext) -> None:
        self._cluster, self._tasks, self._context = cluster, tasks, context

    @property
    def n_nodes(self) -> int:
        """Enough to keep every worker busy."""
        return WAITING * self._cluster.n_workers

    def in_the_way(self, one: Node, other: Node) -> bool:
        """One extraction at a time: it has all workers. Every worker has a backbone of its own."""
        return bool(one.resources.stores and other.resources.stores)

    def threads_of(self, node: Node) -> int:
        """The same for all, whatever runs beside them."""
        return threads_of_workers(self._context.runtime)

    def make(self, node: Node, progress: Progress, threads: int) -> None:
        """Have a node computed; raises as `Tasks.run`."""
        if node.resources.stores or node.id in self._context.built:
            make_with(threads, node, self._context, progress)
            return
        context = self._context
        arguments = node, context.url, context.runtime
        hear = Heard(progress)
        try:
            self._tasks.run(
                compute,
                *arguments,
                name=node.stage,
                label=node.label,
                resources=node.resources,
                hear=hear,
            )
        except PermafrostError:
            raise  # it was foreseen, and its message says what to do
        except Exception as error:
            log_failure(node.label, error)
            raise
        finally:
            hear.end()
        context.refresh()

    def give_up(self) -> None:
        """Nobody waits for workers any more."""
        self._cluster.give_up()
