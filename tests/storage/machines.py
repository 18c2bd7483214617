"""One home on an object store, as several machines see it."""

from pathlib import Path

from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import attach
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import SmallStore, filled_store

URL = "s3://bucket/lab"


def machine(tmp_path: Path, name: str) -> Path:
    """The home as one machine sees it."""
    return attach(URL, tmp_path / name, SilentProgress())


def filled(tmp_path: Path) -> SmallStore:
    return filled_store(machine(tmp_path, "first"), 12)


def keys(server: ObjectServer) -> set[str]:
    return {k.removeprefix("bucket/lab/") for k in server.objects}
