"""Environment variables that make libraries quiet and private."""

import os

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


def set_quiet_defaults() -> None:
    """Set these variables for this process and its children; call before the libraries are imported."""
    for name, value in EMBEDDED_DEFAULTS.items():
        os.environ.setdefault(name, value)
