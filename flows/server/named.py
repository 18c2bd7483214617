"""Whether the user has named a Prefect server; Prefect is imported only where something may name one."""

import os
import sys
from pathlib import Path

SETTINGS = {
    ".env": "prefect_api_url",
    "prefect.toml": "api",
    "pyproject.toml": "[tool.prefect",
}
"""Files of the working folder in which Prefect looks for settings, and a word in those that name a server."""


def server_is_named() -> bool:
    """Whether Prefect has the address of a server, which then records every run.

    Prefect itself is asked, whose import takes seconds, if a file may say so, or the program uses it already.
    """
    if os.environ.get("PREFECT_API_URL"):
        return True
    files = {_profiles(): "prefect_api_url", **{Path(n): word for n, word in SETTINGS.items()}}
    if "prefect" not in sys.modules and not any(_has(f, word) for f, word in files.items()):
        return False
    from prefect.settings import get_current_settings

    return get_current_settings().api.url is not None


def _has(file: Path, word: str) -> bool:
    return file.is_file() and word in file.read_text(encoding="utf-8", errors="replace").lower()


def _profiles() -> Path:
    folder = Path(os.environ.get("PREFECT_HOME") or "~/.prefect")
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or folder / "profiles.toml").expanduser()
