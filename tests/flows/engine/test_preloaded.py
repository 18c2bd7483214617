"""Workers of our cluster are forked from one process that has imported what they need and has one thread."""

import os
from multiprocessing import forkserver
from typing import Any

import psutil
import pytest
import torch
from distributed import Client

from permafrost.flows.engine import cluster_process


def seen_by_a_worker() -> dict[str, Any]:
    parent = psutil.Process(os.getppid())
    torch.set_num_threads(2)  # threads of its own, which no fork has copied
    ones = torch.ones(300, 300)
    return {
        "parent": parent.pid,
        "command": " ".join(parent.cmdline()),
        "threads": len(os.listdir(f"/proc/{parent.pid}/task")),  # noqa: PTH208
        "bytes": parent.memory_info().rss,
        "path": os.environ.get("PYTHONPATH"),
        "sum": float((ones @ ones).sum()),
    }


@pytest.mark.deep
def test_workers_are_forks_of_a_process_that_has_imported_everything_and_has_one_thread(
    scheduler: str,
) -> None:
    with Client(scheduler, set_as_default=False) as client:
        seen: Any = client.run(seen_by_a_worker)
    first, second = seen.values()
    assert first["parent"] == second["parent"]
    assert "multiprocessing.forkserver" in first["command"]
    assert first["bytes"] > 200e6, "torch is imported there"
    assert first["threads"] == 1, "a lock that another thread holds would stay locked in forks"
    assert first["sum"] == second["sum"] == 300**3
    assert first["path"] == os.environ.get("PYTHONPATH"), "the user's own"


@pytest.mark.deep
def test_workers_are_spawned_where_no_socket_can_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a socket has about a hundred characters, and TMPDIR may have more."""

    def refused() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(forkserver, "set_forkserver_preload", lambda _: None)
    monkeypatch.setattr(forkserver, "ensure_running", refused)
    before = dict(os.environ)
    assert cluster_process._preload(["permafrost.flows.engine.preloaded"]) == "spawn"
    assert dict(os.environ) == before
