"""A Dask cluster on this machine: a process that says its addresses and ends with the one that started it.

A process of its own: workers import the main module of the process that starts them again, which a script
without a main guard, or a notebook, does not survive; and a scheduler should not wait for whoever computes.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path


def _end_with_parent(scratch: str) -> None:
    """End, and the workers too, when whoever holds the other end of our standard input is gone."""
    while os.read(0, 1024):
        pass
    # Nothing runs any more that anybody waits for, and whatever is half-written is a draft.
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve until standard input ends."""
    # What libraries print is for people, and our standard output is for the parent.
    report = os.dup(1)
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    scratch = tempfile.mkdtemp(prefix="permafrost-dask-")
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    sys.path[:] = settings["path"]

    # Imported here: it takes a moment, in which the parent may end.
    import dask.config

    threads = settings["threads"]
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    dask.config.set(
        {
            "distributed.nanny.pre-spawn-environ": dict.fromkeys(names, threads),
            "distributed.admin.tick.limit": "1h",
            "temporary-directory": str(Path(scratch)),
        }
    )
    from distributed import LocalCluster

    with contextlib.closing(
        LocalCluster(
            n_workers=settings["workers"],
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=settings["memory"],
            local_directory=scratch,
            silence_logs=False,
        )
    ) as cluster:
        addresses = {
            "scheduler": cluster.scheduler_address,
            "dashboard": cluster.dashboard_link,
        }
        os.write(report, json.dumps(addresses).encode() + b"\n")
        os.close(report)
        threading.Event().wait()


if __name__ == "__main__":
    main()
