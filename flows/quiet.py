"""What libraries tell, and to whom: environment variables that make them quiet and private, and errors that
their tracebacks add nothing to."""

import logging
import os

from permafrost.storage.errors import PermafrostError

EMBEDDED_DEFAULTS = {
    # The embedded server migrates its database on its first start, which outlasts Prefect's 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    # Nothing about a run leaves the machine unless the user asks for it.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",
}
"""Environment variables that make the default quiet and private; the user's own settings take precedence."""

TOLD_TO_PREFECT = {
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "INFO",
}
"""The logs of runs, which Prefect's server has, unless the user says what is logged; of what is printed it is
the level above that counts (`flows.deployed.shown_in_prefect`)."""


def set_quiet_defaults() -> None:
    """Set these variables for this process and its children; call before the libraries are imported."""
    if "PREFECT_LOGGING_LEVEL" not in os.environ:
        for name, value in TOLD_TO_PREFECT.items():
            os.environ.setdefault(name, value)
    for name, value in EMBEDDED_DEFAULTS.items():
        os.environ.setdefault(name, value)


def is_foreseen(record: logging.LogRecord) -> bool:
    """Whether a record is the traceback of an error whose message says all there is to say."""
    return record.exc_info is not None and isinstance(record.exc_info[1], PermafrostError)
