"""Whether a Dask worker can stand in for this process; a worker that cannot gets none of our nodes.

The check goes to workers as text: one with another Python, or without this package, has to be able to run it.
So this file imports nothing of ours, and what it needs besides the standard library every worker has.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from distributed import Status, Worker, WorkerPlugin

LIBRARIES = ("torch", "transformers", "tokenizers", "blingfire", "numpy")
"""Another version of these may give other numbers."""
_LOADED = "exec(source, space) or space['WorkerCheck'](*arguments)"


def facts_here() -> dict[str, str]:
    """What has to be the same in all processes of a run, by what people call it."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in LIBRARIES:
        try:
            # Builds of one version for the CPU and for CUDA (2.13.0+cpu, 2.13.0+cu130) work together.
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    found["permafrost's code"] = _digest_of_sources()
    return found


def _digest_of_sources() -> str:
    spec = importlib.util.find_spec("permafrost")
    if spec is None or spec.origin is None:
        return "none"
    root, digest = os.path.dirname(spec.origin), hashlib.sha256()  # noqa: PTH120  # see below
    # The system knows it to the second.
    started = psutil.Process().create_time() + 2
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    # os.walk, which follows the links of a checkout.
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118
            if name.endswith(".py"):
                digest.update(os.path.relpath(path, root).encode() + b"\0")
                digest.update(Path(path).read_bytes() + b"\0")
                if path in loaded and os.stat(path).st_mtime > started:  # noqa: PTH116
                    return f"{path} as it was before it was changed; start the process again"
    return digest.hexdigest()[:12]


class WorkerCheck(WorkerPlugin):
    """Marks a worker that can stand in for us with a Dask resource, which our nodes ask for.

    One node at a time then runs in a worker process: the number of threads is the process's.

    Args:
        mark: name of the resource.
        facts: what has to be the same.
        marker: a file that workers must see; empty if they need not.
        topic: where what was found is told.
    """

    def __init__(self, mark: str, facts: Mapping[str, str], marker: str, topic: str) -> None:
        self._arguments = (mark, dict(facts), marker, topic)
        self.cancelled: set[Any] = set()
        """Keys of tasks that nobody waits for any more."""

    def __reduce__(self) -> tuple[Any, ...]:
        space = {"__name__": "permafrost_worker_check"}
        known = {
            "source": Path(__file__).read_text("utf-8"),
            "space": space,
            "arguments": self._arguments,
        }
        return eval, (_LOADED, known)

    async def setup(self, worker: Worker) -> None:
        """A worker has joined, or the run."""
        mark, _, _, topic = self._arguments
        try:
            problem = self._problem()
        except Exception as error:
            problem = f"could not be checked: {type(error).__name__}: {error}"
        if not problem:
            await set_mark(worker, mark, 1)
        worker.log_event(
            topic,
            {
                "address": worker.address,
                "name": str(worker.name),
                "limit": worker.memory_manager.memory_limit or 0,
                "host": socket.gethostname(),
                "resources": list(worker.state.total_resources),
                "status": worker.status.name,
                "problem": problem,
            },
        )

    def _problem(self) -> str:
        """What differs, for people; nothing if nothing does."""
        _, facts, marker, _ = self._arguments
        here = facts_here()
        differing = [
            f"has {name} {here[name]} where this process has {wanted}"
            for name, wanted in facts.items()
            if here.get(name) != wanted
        ]
        if marker and not Path(marker).exists():
            differing.append(f"does not see the home {Path(marker).parent}")
        return " and ".join(differing)

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """A task of the worker has changed its state."""
        if finish == "cancelled":
            self.cancelled.add(key)
        else:
            self.cancelled.discard(key)


async def set_mark(worker: Worker, mark: str, value: int) -> None:
    """Let a worker have our nodes, or no more of them but what it has been given."""
    await worker.set_resources(**{mark: value})
    if not value:
        # The scheduler does not take back what waits here.
        worker.state.total_resources[mark] += 1
        worker.state.available_resources[mark] += 1
    if worker.status == Status.running:
        # The scheduler looks for what waits for a worker, and the worker for what it may begin, as workers
        # come and resume, not at resources.
        worker.status = Status.paused
        worker.status = Status.running
