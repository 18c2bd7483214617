"""The Prefect API that a run talks to: the configured one, or a server of our own for as long as it lasts."""

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from httpx import HTTPError, HTTPStatusError, InvalidURL
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

from permafrost.flows.companion import ENDING_S, Program, companion
from permafrost.flows.server import process
from permafrost.flows.stopping import STOP, TIDY_S
from permafrost.flows.terminal import Terminal
from permafrost.storage.errors import InputError
from permafrost.storage.paths import require_writable
from permafrost.storage.quoting import quoted

ANSWER_S = 10.0
"""How long a server that is named may take to answer before a run begins."""

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
        InputError: the configured one does not answer, or none is configured and we may not start one.
        PermafrostError: the server did not start.
    """
    settings = get_current_settings()
    if settings.api.url is not None:
        _require_answer(settings.api.url)
        yield False
        return
    if not settings.server.ephemeral.enabled:
        raise InputError(
            "no Prefect server is named, and PREFECT_SERVER_EPHEMERAL_ENABLED forbids a run to start one of "
            "its own; set PREFECT_API_URL to a server that is running, or unset "
            "PREFECT_SERVER_EPHEMERAL_ENABLED, or, for a run, use --engine serial, which needs no server"
        )
    with (
        _home(settings.home) as home,
        _server({**settings.to_environment_variables(exclude_unset=True), **home}) as url,
    ):
        # In the environment too, for the processes that stages start.
        os.environ["PREFECT_API_URL"] = url
        changed: dict[Any, Any] = {PREFECT_API_URL: url}
        if home:
            changed[PREFECT_HOME] = home["PREFECT_HOME"]
        try:
            with temporary_settings(changed):
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


def _require_answer(url: str) -> None:
    """Raises: InputError: no server can be reached at this address."""
    # One that answers with an error is there; what it says is told by what is asked of it.
    with get_client(httpx_settings={"timeout": ANSWER_S}, sync_client=True) as client:
        error = client.api_healthcheck()
    if isinstance(error, HTTPError | InvalidURL) and not isinstance(error, HTTPStatusError):
        if os.environ.get("PREFECT_API_URL"):
            source, undo = "the environment variable PREFECT_API_URL", "unset PREFECT_API_URL"
        else:
            source = "Prefect's settings ('prefect config view --show-sources' says which)"
            undo = "take it out of them ('prefect config unset PREFECT_API_URL' for a profile)"
        raise InputError(
            f"no Prefect server answers at {quoted(url)} ({type(error).__name__}: {error}), the address in "
            f"{source}; start that server, or {undo}, and a server is started for as long as this lasts"
        ) from error


@contextlib.contextmanager
def _home(folder: Path) -> Generator[dict[str, str]]:
    """The environment variable that gives Prefect another folder for its files, if it cannot write to its
    own, as on a compute node whose $HOME is read-only: a temporary one, gone at the end of the block."""
    try:
        require_writable(folder, "what Prefect records")
    except (InputError, OSError):
        Terminal(stderr=True, soft_wrap=True).print(
            f"Prefect cannot write to its folder {folder} and has a temporary one for now; set PREFECT_HOME "
            "to a folder that it can write to, if its records are to stay"
        )
        with tempfile.TemporaryDirectory(
            prefix="permafrost-prefect-", ignore_cleanup_errors=True
        ) as temporary:
            yield {"PREFECT_HOME": temporary}
    else:
        yield {}


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
            file=process.__file__,
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
