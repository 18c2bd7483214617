"""The one task: key -> reuse, or compute and publish -> reference."""

from typing import Any

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from prefect.utilities.annotations import quote

from flows.board import Board, StageProgress
from flows.dag import Dag, Node
from flows.provenance import provenance
from storage.artifacts import ArtifactRef
from storage.errors import PermafrostError, StoreBusyError


def make(dag: Dag, node: Node, progress: StageProgress) -> ArtifactRef:
    """Compute a node and publish it."""
    with dag.artifacts.publishing(node.spec, provenance()) as draft:
        node.make(draft, progress)
    return node.spec.ref


def _may_help(task_: Any, run: Any, state: Any) -> bool:
    """Retry what another try can cure: a busy store, a lost device; never wrong input or corrupt data."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StoreBusyError) or not isinstance(
        error, PermafrostError | AssertionError
    )


@task(
    name="stage",
    task_run_name="{label}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=_may_help,
)
def run_stage(
    label: str, dag: "quote[Dag]", node: "quote[Node]", board: "quote[Board]", threads: int
) -> Any:
    """Run one node on Prefect; its state is named `Cached` when the artifact was there already.

    Prefect's own result cache is off: the artifact store alone says what is done.
    """
    dag_, node_, board_ = dag.unquote(), node.unquote(), board.unquote()
    if dag_.is_done(node_):
        return Completed(name="Cached", message=f"reused {node_.spec.ref}")
    torch.set_num_threads(threads)
    make(dag_, node_, StageProgress(board_, label))
    return Completed(message=f"published {node_.spec.ref}")
