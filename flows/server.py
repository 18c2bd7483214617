"""The Prefect API that a run talks to: the configured one, or a server of our own for as long as it lasts."""

import contextlib
import os
from collections.abc import Generator

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

from permafrost.flows import server_process
from permafrost.flows.companion import ENDING_S, Program, companion
from permafrost.flows.stopping import STOP, TIDY_S

RECORDING = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}
"""Settings of a server of ours: it writes what stages do once a second. One by one it takes 34 ms of
processor time for each stage, and not 11, of the cores that stages are to have (docs/LOG.md)."""


@contextlib.contextmanager
def prefect_api() -> Generator[bool]:
    """Prefect has an API inside the block; if none is configured, that of a server which we start, and that
    ends with the block (True).

    Prefect would start one by itself, too. But a terminal's Ctrl-C ends that one before us, so that whoever
    talks to it waits for ever, and nobody ends it if we are killed.

    Raises:
        PermafrostError: the server did not start.
    """
    settings = get_current_settings()
    if settings.api.url is not None or not settings.server.ephemeral.enabled:
        yield False
        return
    with _server(settings.to_environment_variables(exclude_unset=True)) as url:
        # In the environment too, for the processes that stages start.
        os.environ["PREFECT_API_URL"] = url
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                patience_s = TIDY_S
                try:
                    yield True
                    patience_s = ENDING_S
                except Exception:
                    patience_s = ENDING_S
                    raise
                finally:
                    _send_what_waits(patience_s)
        finally:
            del os.environ["PREFECT_API_URL"]


def _send_what_waits(patience_s: float) -> None:
    """Have Prefect's senders end: they keep the address of the server they were made for, and what later
    runs of this process tell them would go to one that is gone, each event until its time is out."""
    if not STOP.ends_the_process:
        for sender in (EventsWorker, APILogWorker):
            sender.drain_all(timeout=patience_s)


def _server(settings: dict[str, str]) -> contextlib.AbstractContextManager[str]:
    """The address of a new server; it ends with the block, or when this process does."""
    return companion(
        Program(
            name="Prefect's server",
            file=server_process.__file__,
            arguments=(),
            environment={**RECORDING, **settings},
            patience_s=PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value(),
            advice=(
                "set PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS to wait longer, or PREFECT_API_URL to "
                "use one that is running",
                "'prefect server start' may say more, and PREFECT_API_URL can name one that is running",
            ),
        )
    )
