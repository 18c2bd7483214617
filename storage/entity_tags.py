"""What a replica remembers: whose it is, and the entity tags of the index files as they are here."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from permafrost.storage.errors import InputError

TAGS = ".entity-tags.json"


def write_tags(folder: Path, url: str, tags: Mapping[str, str]) -> None:
    """Keep the entity tags for the next process, which then pulls only what changed."""
    draft = folder / f".draft-tags-{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps({"url": url, "tags": tags}), encoding="utf-8")
        draft.replace(folder / TAGS)


def read_tags(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The URL that a folder is the replica of, and the entity tags; None if it is no replica."""
    try:
        found = json.loads((folder / TAGS).read_text(encoding="utf-8"))
        return str(found["url"]), dict(found["tags"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def mirrored_at(path: Path) -> str | None:
    """The URL of the home whose replica a path is, or lies in; None if it is an ordinary one."""
    for folder in (path.absolute(), *path.absolute().parents):
        if (known := read_tags(folder)) is not None:
            return known[0]
    return None


def require_no_replica(path: Path) -> None:
    """For a folder that is to be used as an ordinary one.

    Raises:
        InputError: it is, or lies in, the replica of an object store.
    """
    if (url := mirrored_at(path)) is not None:
        raise InputError(
            f"{path} is this machine's copy of {url}, which loses what is written to it alone; give the URL "
            "in its place"
        )
