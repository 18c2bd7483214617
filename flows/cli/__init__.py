"""The command line."""

import atexit
import gc
import time

from permafrost.flows.stopping import STOP
from permafrost.flows.threads import let_waiting_threads_sleep

STARTED_S = time.monotonic()
"""When the program started, before it imported anything that takes long."""


def main() -> None:
    """Entry point of the console script; its exit codes are in `flows.cli.app`."""
    let_waiting_threads_sleep()
    # Python's own search for cycles among all that was imported takes two seconds, and finds nothing we need.
    atexit.register(gc.freeze)
    with STOP.listening():
        # Imported here: it takes a while, in which Ctrl-C must be heard.
        from permafrost.flows.cli import app

        app.main()
