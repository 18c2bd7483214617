"""What workers compute, noted as each attempt begins; in place of what they are sent otherwise."""

import os
import time
from pathlib import Path
from typing import Any

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import engine, in_worker
from permafrost.flows.engine.in_worker import Line
from permafrost.flows.graph import Node
from permafrost.stages.extraction import segment_pool
from permafrost.stages.extraction.segment_pool import SegmentTask
from permafrost.storage.features.segment_drafts import SealedSegment


def attempts_file(home: Path) -> Path:
    """Lines of nanoseconds, process, and what: a receipt's folder or an artifact's, relative to the home."""
    return home.with_name("attempts")


def _note(home: Path, what: str) -> None:
    with attempts_file(home).open("a") as lines:
        lines.write(f"{time.time_ns()} {os.getpid()} {what}\n")


def _make(node: Node, context: RunContext, *arguments: Any) -> None:
    _note(context.home, f"artifacts/{node.ref}")
    engine.make(node, context, *arguments)


def _compute_segment(task: SegmentTask, *arguments: Any) -> SealedSegment:
    store = task.cells.root
    receipts = f"features/{store.name}/receipts/{task.cells.segment:06d}"
    _note(store.parent.parent, receipts)
    return segment_pool.compute_segment(task, *arguments)


def compute(node: Node, home: str, runtime: RunRuntime, line: Line) -> None:
    """See in_worker."""
    in_worker.make = _make
    in_worker.compute(node, home, runtime, line)


def compute_segment_here(
    task: SegmentTask, home: str, runtime: RunRuntime, line: Line
) -> SealedSegment:
    """See in_worker."""
    in_worker.compute_segment = _compute_segment
    return in_worker.compute_segment_here(task, home, runtime, line)
