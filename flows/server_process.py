"""Prefect's server as a process that prints its address and ends with the one that started it."""

import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

ENDING_S = 2.0
"""How long it may take to end in order."""


class _Parent:
    """Whoever holds the other end of our standard input."""

    def __init__(self) -> None:
        self._server: uvicorn.Server | None = None
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def serve(self, server: "uvicorn.Server") -> None:
        """Let this server end in order when the parent is gone."""
        self._server = server

    def _end_with_it(self) -> None:
        while os.read(0, 1024):
            pass
        if self._server is not None:
            self._server.should_exit = True
            time.sleep(ENDING_S)
        os._exit(0)


def main() -> None:
    """Serve until standard input ends."""
    parent = _Parent()
    # What libraries print is for people, and our standard output is for the parent.
    report = os.dup(1)
    os.dup2(2, 1)

    # Imported here: it takes seconds, in which the parent may end.
    import uvicorn
    from prefect.server.api.server import create_app

    # A free port of the loopback interface, held from now on.
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    parent.serve(server)

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
