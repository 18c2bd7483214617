"""Ports for servers that tests start by number."""

import os
import random
import socket

FIRST, PER_WORKER, N_WORKERS = 20_000, 750, 16
"""Below the ports that systems hand out by themselves (32768 up on Linux, 49152 on others)."""
_given: set[int] = set()


def free_port() -> int:
    """A port that nothing listens on; nobody else is given it.

    A port asked of the system (port 0) can be given to another process as soon as the probe is closed: a
    Dask worker of the next test got the one that a health check was already asking. These are never handed
    out by the system, and every pytest worker has its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % N_WORKERS
    mine = range(FIRST + worker * PER_WORKER, FIRST + (worker + 1) * PER_WORKER)
    for port in random.sample(mine, len(mine)):
        with socket.socket() as probe:
            if port not in _given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _given.add(port)
                return port
    raise RuntimeError(f"no port from {mine[0]} to {mine[-1]} is free")
