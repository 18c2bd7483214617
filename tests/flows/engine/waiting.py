"""A stage whose worker waits to be killed the first time, or finds other files than we did."""

import os
import time
from pathlib import Path

from distributed import Worker

from permafrost.flows.context import RunContext
from permafrost.flows.engine.worker_check import set_mark
from permafrost.flows.graph import Node
from permafrost.flows.stage import Stage
from permafrost.storage.artifacts import Draft
from permafrost.storage.durable import read_json, write_json
from permafrost.storage.errors import IdentityMismatchError
from permafrost.storage.progress import Progress


class Waiting(Stage):
    """Computed by the second worker that has it."""

    name = "waiting"

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        write_json(draft.folder / "pid.json", os.getpid())
        first = context.home / "first.json"
        if first.exists():
            return
        write_json(first, os.getpid())
        if node.config["unlike"]:
            raise IdentityMismatchError("has another model.safetensors")
        progress.start("wait", 1, "nothings")
        while True:
            time.sleep(0.05)
            progress.advance(0)


def waiting(label: str, unlike: bool = False) -> Node:
    """A node of this stage."""
    return Waiting.node(label, {"unlike": unlike}, [])


def first_worker(home: Path) -> int:
    """Process of the worker that had it first."""
    return read_json(home / "first.json")


async def mark(value: int, dask_worker: Worker) -> None:
    """Sets the Dask resource `mark` of a worker."""
    await set_mark(dask_worker, "mark", value)


def wait_for(file: Path) -> None:
    """Takes until there is a file."""
    while not file.exists():
        time.sleep(0.01)
