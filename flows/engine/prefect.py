"""Every node is a task run of Prefect, named by what it is, with the nodes it needs as its inputs.

Nodes run in threads of this process. Prefect's task runners wait for upstream futures inside a worker thread,
so a node is submitted only when it is ready, with futures that have finished: Prefect's UI draws its graph
from them.
"""

import queue
from collections.abc import Mapping
from typing import Any

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import end, reuse_or_make
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome, Schedule
from permafrost.flows.graph import Graph, Node
from permafrost.flows.stopping import STOP
from permafrost.storage.errors import ObjectStoreError, StoreBusyError

CURABLE = (
    StoreBusyError,
    ObjectStoreError,
    OSError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
)
"""Errors that a retry may cure: a busy store, a flaky file system, a lost device, device memory that another
program held for a moment. Not wrong input, damaged data or our own bugs. An extraction splits its batches
itself, and a single text that does not fit is not retried."""
_POLL_S = 0.1


def _may_help(task: Any, run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), CURABLE)


@task(
    name="stage",
    task_run_name="{label}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=_may_help,
)
def run_node(label: str, node: Node, context: RunContext, display: Display, threads: int) -> Any:
    """Run one node; its state is named `Cached` when the artifact was there already.

    Prefect's own result cache is off: the artifact store alone says what is done.
    """
    if reuse_or_make(node, context, display, threads):
        return Completed(name="Cached", message=f"reused {node.id}")
    return Completed(message=f"published {node.id}")


class PrefectEngine:
    """For use inside a flow run.

    Args:
        n_workers: maximum number of nodes at a time.
    """

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """Run the graph; returns how each node ended, by id."""
        schedule = Schedule(graph, context.wants_the_machine)
        futures: dict[str, PrefectFuture[Any]] = {}
        ended: queue.SimpleQueue[Node] = queue.SimpleQueue()
        display.begin(len(graph))
        with ThreadPoolTaskRunner(max_workers=self.n_workers) as runner:
            while not schedule.finished:
                while schedule.n_running < self.n_workers and (node := schedule.next()):
                    schedule.start(node)
                    futures[node.id] = runner.submit(
                        run_node,
                        {
                            "label": node.label,
                            # quote: Prefect looks for futures inside parameters.
                            "node": quote(node),
                            "context": quote(context),
                            "display": quote(display),
                            "threads": context.threads_of(node),
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
                    end(schedule, node, "failed", error, context, display)
        return schedule.outcomes


def _wait(ended: "queue.SimpleQueue[Node]") -> Node:
    while True:
        STOP.check()
        try:
            return ended.get(timeout=_POLL_S)
        except queue.Empty:
            continue
