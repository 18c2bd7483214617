"""What was computed once and is kept in the user's cache folder, by the content that it was computed from."""

import contextlib
import hashlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from permafrost.storage.errors import InputError
from permafrost.storage.paths import cache_folder


def kept(room: str, name: str, made_from: Sequence[Any]) -> Any:
    """The value that was kept under a name; None if there is none that was made from the same.

    Args:
        room: folder in the cache.
        name: a file name.
        made_from: plain JSON that determines the value: digests, versions. Times of files do not count.
    """
    try:
        checksum, _, content = (_path(room, name).read_bytes()).partition(b"\n")
    except (OSError, InputError):
        return None
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        return None  # what a power cut has left
    found = json.loads(content)
    return found.get("value") if found.get("made_from") == list(made_from) else None


def keep(room: str, name: str, made_from: Sequence[Any], value: Any) -> None:
    """Keep a value, plain JSON, in place of an earlier one; see `kept`."""
    content = json.dumps(
        {"made_from": list(made_from), "value": value}, separators=(",", ":")
    ).encode()
    checksum = hashlib.sha256(content).hexdigest().encode()
    # A cache that cannot be written costs time and nothing else.
    with contextlib.suppress(OSError, InputError):
        path = _path(room, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{name}-{uuid.uuid4().hex[:8]}")
        try:
            draft.write_bytes(checksum + b"\n" + content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _path(room: str, name: str) -> Path:
    return cache_folder() / room / f"{name}.json"
