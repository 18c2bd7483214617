"""Stages that log and fail in a worker, or take more of its memory than Dask likes."""

import logging
import os
import time

import numpy as np
import psutil

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.stage import Stage
from permafrost.storage.artifacts import Draft
from permafrost.storage.durable import write_json
from permafrost.storage.progress import Progress

PIECE_BYTES = 8 << 20
# As plug-ins do. In a worker, nobody has set up anything.
logging.basicConfig()


class Failing(Stage):
    """Logs, and raises an error of its own."""

    name = "failing"

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        logging.getLogger("some.library").error("a lamp is out in process %d", os.getpid())
        raise ArithmeticError("three is not four")


class Greedy(Stage):
    """Takes memory until its process has so many bytes, and holds them until it is ended or a file is
    there."""

    name = "greedy"

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        progress.start("take", 1, "pieces")
        process, held = psutil.Process(), []
        while process.memory_info().rss < node.config["n_bytes"]:
            held.append(np.ones(PIECE_BYTES, np.uint8))
            progress.advance(0)
        while not (context.home / node.config["until"]).exists():
            time.sleep(0.05)
            progress.advance(0)
        write_json(draft.folder / "pid.json", os.getpid())


def failing(label: str) -> Node:
    """A node that logs and fails."""
    return Failing.node(label, {}, [])


def greedy(label: str, n_bytes: int, until: str = ".") -> Node:
    """A node whose worker has so many bytes until there is a file of this name in the home."""
    return Greedy.node(label, {"n_bytes": n_bytes, "until": until, "label": label}, [])
