"""A Dask cluster on this machine: a process that says its addresses and ends with the one that started it.

A process of its own: workers import the main module of the process that starts them again, which a script
without a main guard, or a notebook, does not survive; and a scheduler should not wait for whoever computes.

Workers are forked from a process that has imported what they need and runs nothing (decision 0050), or
spawned where nothing is to be preloaded.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

USERS_PATH = "PERMAFROST_USERS_PYTHONPATH"
"""The user's own PYTHONPATH, while ours says where the modules lie that are preloaded."""
ONE_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment of what workers are forked from. A fork copies one thread, and an allocator that comes with
pyarrow would start another."""


def _preload(modules: Sequence[str]) -> str:
    """Start what workers are forked from: its imports take seconds, in which we start ourselves.

    Returns:
        How workers are started: "spawn" where there is nothing to preload, or the folder for temporary files
        has so long a name that no socket can lie there.
    """
    if not modules:
        return "spawn"
    before = dict(os.environ)
    # It does not take our sys.path.
    path = os.pathsep.join(sys.path)
    os.environ |= {**ONE_THREAD, USERS_PATH: os.environ.get("PYTHONPATH", ""), "PYTHONPATH": path}
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    try:
        forkserver.ensure_running()
    except OSError:
        os.environ.clear()
        os.environ.update(before)
        return "spawn"
    return "forkserver"


def _end_with_parent(scratch: str) -> None:
    """End, and the workers too, when whoever holds the other end of our standard input is gone."""
    while os.read(0, 1024):
        pass
    # Nothing runs any more that anybody waits for, and whatever is half-written is a draft.
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _report_errors_only() -> None:
    """Of the scheduler and of what looks after workers; workers' own reach the run.

    Not what the run says in a line of its own: that it has lost a worker, or gives up a node.
    """
    from distributed.comm.core import CommClosedError
    from tornado.iostream import StreamClosedError

    def is_news(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        said = ("Couldn't gather keys", "Task %s marked as failed because")
        closed = isinstance(error, CommClosedError | StreamClosedError)
        return not (closed or str(record.msg).startswith(said))

    logging.getLogger("distributed").setLevel(logging.ERROR)
    for handler in logging.getLogger("distributed").handlers:
        handler.addFilter(is_news)
    for name in ("asyncio", "tornado.application"):
        logging.getLogger(name).addFilter(is_news)


def main() -> None:
    """Serve until standard input ends."""
    # What libraries print is for people, and our standard output is for the parent.
    report = os.dup(1)
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    scratch = tempfile.mkdtemp(prefix="permafrost-dask-")
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    sys.path[:] = settings["path"]
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    threads = dict.fromkeys(names, str(settings["threads"]))
    os.environ |= threads
    method = _preload(settings["preload"])

    # Imported here: it takes a moment, in which the parent may end.
    import dask.config

    dask.config.set(
        {
            "distributed.worker.multiprocessing-method": method,
            "distributed.nanny.pre-spawn-environ": threads,
            # Nobody looks at what these wake every process for, 50 and 100 times a second.
            "distributed.admin.tick.interval": "1s",
            "distributed.admin.tick.limit": "1h",
            "distributed.worker.profile.enabled": False,
            "temporary-directory": str(Path(scratch)),
        }
    )
    from distributed import LocalCluster

    _report_errors_only()
    with contextlib.closing(
        LocalCluster(
            n_workers=settings["workers"],
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=settings["memory"],
            local_directory=scratch,
            silence_logs=False,
        )
    ) as cluster:
        addresses = {
            "scheduler": cluster.scheduler_address,
            "dashboard": cluster.dashboard_link,
            "scratch": scratch,
        }
        os.write(report, json.dumps(addresses).encode() + b"\n")
        os.close(report)
        threading.Event().wait()


if __name__ == "__main__":
    main()
