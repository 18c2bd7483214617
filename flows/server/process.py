"""Prefect's server as a process that prints its address and ends with the one that started it."""

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

ENDING_S = 2.0
"""How long it may take to end in order."""


def quieten_database() -> None:
    """Hold what the pool of database connections logs to the level that the server's own log has: a request
    whose caller has gone is cancelled, and its connection is set back with a traceback that tells nobody
    anything."""
    logging.getLogger("sqlalchemy.pool").setLevel(
        os.environ.get("PREFECT_SERVER_LOGGING_LEVEL", "WARNING")
    )


class _Parent:
    """Whoever holds the other end of our standard input."""

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = None
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def call_when_gone(self, end: Callable[[], None]) -> None:
        """Let a server end in order when the parent is gone."""
        self._end = end

    def _end_with_it(self) -> None:
        while os.read(0, 1024):
            pass
        if self._end is not None:
            self._end()
            time.sleep(ENDING_S)
        os._exit(0)


def main() -> None:
    """Serve until standard input ends."""
    parent = _Parent()
    # What libraries print is for people, and our standard output is for the parent.
    report = os.dup(1)
    os.dup2(2, 1)

    # Imported here: it takes seconds, in which the parent may end. What is imported stays, and need not be
    # looked through for garbage time and again.
    gc.disable()
    import uvicorn
    from prefect.server.api.server import create_app

    gc.freeze()
    gc.enable()
    quieten_database()

    # A free port of the loopback interface, held from now on.
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))

    def end() -> None:
        server.should_exit = True

    parent.call_when_gone(end)

    def announce() -> None:
        while not server.started:
            time.sleep(0.02)
        os.write(report, f"http://127.0.0.1:{listener.getsockname()[1]}/api\n".encode())
        os.close(report)

    threading.Thread(target=announce, daemon=True).start()
    server.run(sockets=[listener])
    if not server.started:
        sys.exit(3)


if __name__ == "__main__":
    main()
