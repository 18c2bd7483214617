"""The contract of an engine, and what all of them do with one node."""

import os
import platform
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from permafrost.flows.context import RunContext
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.engine.schedule import Outcome, Schedule, State
from permafrost.flows.graph import Graph, Node
from permafrost.flows.origin import RECORDED
from permafrost.flows.stage import stage_of
from permafrost.flows.stopping import STOP
from permafrost.storage.durable import let_others_read
from permafrost.storage.fingerprint import load
from permafrost.storage.progress import Progress, Waits


class Engine(Protocol):
    """Runs every node of a graph whose dependencies succeed.

    Whatever the engine: the same nodes with the same keys, and the same payloads at the same number of
    threads, which `RunContext.threads_of` tells. A node whose artifact exists is reused.
    """

    name: str
    """As people write it."""
    n_workers: int
    """Nodes side by side, at most."""

    def threads_of(self, node: Node, context: RunContext) -> int | None:
        """torch's threads in a node; None for an engine that computes nothing."""
        ...

    def run(self, graph: Graph, context: RunContext, display: Display) -> Mapping[str, Outcome]:
        """Run the graph; returns how each node ended, by id.

        Raises:
            Stopped: the process was asked to stop.
        """
        ...


def make(
    node: Node,
    context: RunContext,
    progress: Progress,
    worker: Mapping[str, str] | None = None,
    *,
    again: bool = False,
) -> None:
    """Compute a node and publish it; `worker` is added to its provenance. `again` replaces what is published,
    once there is another."""
    stage = stage_of(node)
    load(node.code)
    told = provenance() | {"device": context.device_of(node)} | dict(worker or {})
    if node.origins:
        told[RECORDED] = [origin.model_dump(mode="json") for origin in node.origins]
    try:
        with context.artifacts.publishing(node.spec, told, again=again) as draft:
            waits = Waits(progress)
            if node.resources.backbone:
                context.backbone.begin(waits)
            stage.run(node, context, draft, waits)
            draft.waited_s = waits.seconds
            let_others_read(draft.folder)
    finally:
        if node.resources.backbone:
            context.backbone.release()


def make_with(threads: int, node: Node, context: RunContext, progress: Progress) -> None:
    """As `make`, with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        make(node, context, progress)
    finally:
        # In the serial engine it is the user's own thread.
        torch.set_num_threads(before)


def reuse_or_make(node: Node, context: RunContext, display: Display, threads: int) -> bool:
    """Ensure that a node is done; returns True if it already was."""
    STOP.check()
    if stage_of(node).is_done(node, context):
        return True
    make_with(threads, node, context, NodeProgress(display, node.label))
    return False


def end(
    schedule: Schedule,
    node: Node,
    state: State,
    error: BaseException | None,
    context: RunContext,
    display: Display,
) -> None:
    """Record how a node ended: report a failure, and free the backbone after the last node that runs it."""
    first, *skipped = schedule.end(node, state, error)
    if state == "failed":
        more = f"; {len(skipped)} more need it and are skipped" if skipped else ""
        display.say(f"failed {first.node.label}{more}", "red")
    display.ended(1 + len(skipped))
    if node.resources.backbone and not schedule.needs_backbone:
        context.backbone.drop()


def provenance() -> dict[str, Any]:
    """Library versions, host, process, and torch's threads in this thread of it."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
    }
