"""The Prefect API that a run talks to: the configured one, or a server of our own for as long as it lasts."""

import contextlib
import os
import select
import subprocess
import sys
import time
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
from permafrost.flows.stopping import STOP
from permafrost.storage.errors import PermafrostError

ENDING_S = 5.0
"""How long our server may take to end by itself."""


@contextlib.contextmanager
def prefect_api() -> Generator[None]:
    """Prefect has an API inside the block; if none is configured, that of a server which we start.

    Prefect would start one by itself, too. But a terminal's Ctrl-C ends that one before us, so that whoever
    talks to it waits for ever, and nobody ends it if we are killed.

    Raises:
        PermafrostError: the server did not start.
    """
    settings = get_current_settings()
    if settings.api.url is not None or not settings.server.ephemeral.enabled:
        yield
        return
    with _server(settings.to_environment_variables(exclude_unset=True)) as url:
        # In the environment too, for the processes that stages start.
        os.environ["PREFECT_API_URL"] = url
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                try:
                    yield
                finally:
                    _send_what_waits()
        finally:
            del os.environ["PREFECT_API_URL"]


def _send_what_waits() -> None:
    """Have Prefect's senders end: they keep the address of the server they were made for, and what later
    runs of this process tell them would go to one that is gone, each event until its time is out."""
    if not STOP.asked:
        for sender in (EventsWorker, APILogWorker):
            sender.drain_all(timeout=ENDING_S)


@contextlib.contextmanager
def _server(settings: dict[str, str]) -> Generator[str]:
    """The address of a new server; it ends with the block, or when this process does."""
    process = subprocess.Popen(
        # -P: nothing in the folder where we are, or in ours, may pass for a package that it imports.
        [sys.executable, "-P", server_process.__file__],
        # Its end of this pipe tells it when we are gone, however that happens.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **settings},
        # Out of the terminal's process group: Ctrl-C is for us.
        start_new_session=True,
    )
    assert process.stdin is not None
    with process, STOP.last_act(process.kill):
        try:
            yield _address(process)
        finally:
            process.stdin.close()
            try:
                process.wait(0 if STOP.asked else ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes]) -> str:
    """What the server says once it answers."""
    assert process.stdout is not None
    limit = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    deadline = time.monotonic() + limit
    while not select.select([process.stdout], [], [], 0.1)[0]:
        STOP.check()
        if time.monotonic() > deadline:
            raise PermafrostError(
                f"Prefect's server did not start within {limit} s; set "
                f"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS to wait longer, or PREFECT_API_URL to use "
                f"one that runs"
            )
    url = process.stdout.readline().decode().strip()
    if not url:
        raise PermafrostError(
            f"Prefect's server ended with exit code {process.wait()} instead of starting; what it said is "
            f"above. 'prefect server start' may say more, and PREFECT_API_URL names one that runs"
        )
    return url
