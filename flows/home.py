"""Where a home is: a folder, or the local replica of one on an object store."""

import hashlib
import os
import re
from pathlib import Path

from permafrost.storage.errors import InputError
from permafrost.storage.paths import HOME_BYTES, checked_path
from permafrost.storage.progress import Progress
from permafrost.storage.replica import attach


def open_home(home: str, progress: Progress) -> Path:
    """The folder of a home; for a URL the folder that mirrors it, brought up to date.

    Replicas lie under PERMAFROST_CACHE, or else in the user's cache folder.

    Raises:
        InputError: the home is a file, or a URL that cannot be used.
    """
    if "://" in home:
        return attach(home.rstrip("/"), _replica_folder(home.rstrip("/")), progress)
    path = checked_path(home, "--home", HOME_BYTES)
    if path.exists() and not path.is_dir():
        raise InputError(f"--home {home} is a file; give a folder")
    return path


def _replica_folder(url: str) -> Path:
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "permafrost"
    name = re.sub(r"[^A-Za-z0-9.]+", "-", url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return Path(os.environ.get("PERMAFROST_CACHE") or fallback) / f"{name}-{digest}"
