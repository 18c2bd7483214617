"""The one task: key -> reuse, or compute and publish -> reference."""

from typing import Any

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from flows.board import Board, StageProgress
from flows.dag import Dag
from flows.nodes import Node
from flows.provenance import provenance
from flows.stopping import STOP
from storage.artifacts import ArtifactRef
from storage.errors import ObjectStoreError, StoreBusyError


def make(dag: Dag, node: Node, progress: StageProgress) -> ArtifactRef:
    """Compute a node and publish it."""
    with dag.artifacts.publishing(node.spec, provenance()) as draft:
        node.make(draft, progress)
    return node.spec.ref


CURABLE = (
    StoreBusyError,
    ObjectStoreError,
    OSError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
)
"""What another try can cure: a busy store, a flaky file system, a lost device, memory of a device that
another program had for the moment. Not wrong input, not damaged data, not our own bugs. An extraction splits
its batches itself, and a text that does not fit alone is not tried again."""


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
def run_stage(label: str, dag: Dag, node: Node, board: Board, threads: int) -> Any:
    """Run one node on Prefect; its state is named `Cached` when the artifact was there already.

    Prefect's own result cache is off: the artifact store alone says what is done.
    """
    STOP.check()
    if dag.is_done(node):
        return Completed(name="Cached", message=f"reused {node.spec.ref}")
    torch.set_num_threads(threads)
    make(dag, node, StageProgress(board, label))
    return Completed(message=f"published {node.spec.ref}")
