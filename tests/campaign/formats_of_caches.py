"""What is kept beside a home: what is not as it was written counts as not there, and is made again."""

import os
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, MemoryStore

from permafrost.flows.gpu_lock import holder
from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.storage.errors import CorruptDataError, StoreBusyError
from permafrost.storage.features import seen, text_index
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.kept import keep, kept
from permafrost.storage.lease import Lease
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import Replica
from tests.campaign.fuzzing import Format, json_values
from tests.storage.small_store import SmallStore

MANIFEST = "artifacts/fit/key/artifact.json"
OURS = b'{"pid": 1, "host": "another machine", "renewed": "2026", "id": "x"}'


def formats_of_caches(store: Path, small: SmallStore, folder: Path) -> dict[str, Format]:
    """One file of each. Changes this process's cache folder; small stores count as large ones in it.

    Args:
        store: a store with the texts of `small`.
        small: what is in it.
        folder: for what is kept.
    """
    folder.mkdir(parents=True)
    os.environ["PERMAFROST_CACHE"] = str(folder / "cache")
    seen.WORTH = text_index.WORTH = 1
    seen.SETTLED_S = 0.0
    return {
        "kept value": _value(folder / "cache"),
        **_seen(store, small, folder / "cache" / "stores"),
        "checkpoint": _checkpoint(folder / "fit.checkpoint"),
        "entity tags": _tags(folder / "replica"),
        "lease": _lease(folder / "lease"),
        "GPU's lock": _lock(folder / "gpu.lock"),
    }


def _value(cache: Path) -> Format:
    keep("fuzzed", "one", ["1", 2], {"words": ["snow", "ice"]})

    def read() -> object:
        return _there(kept("fuzzed", "one", ["1", 2]))

    return Format(cache / "fuzzed" / "one.json", read)


def _seen(store: Path, small: SmallStore, folder: Path) -> dict[str, Format]:
    """What a store's tables and receipts were last seen to say: never other than what they say."""

    def read() -> object:
        opened = FeatureStore.open(store)
        found = opened.locate([*small.digests, "0" * 64])
        cells = opened.missing_cells(opened.segments(), ["hidden/1", "hidden/2", "values/2"])
        return [found.segment.tolist(), found.token_start.tolist(), sorted(cells.items())]

    read()
    paths = {path.stem.rpartition("-")[2]: path for path in folder.glob("*.npz")}
    return {f"seen {name}": Format(path, read) for name, path in sorted(paths.items())}


def _checkpoint(path: Path) -> Format:
    made = Checkpoint(path, "mine")
    made.save({"epoch": 3, "losses": [0.5, 0.25]})
    return Format(path, lambda: _there(made.load()))


def _tags(folder: Path) -> Format:
    """An object that has changed since it was fetched is fetched again."""
    (bucket := folder.with_name("bucket")).mkdir()
    store, path = LocalStore(bucket), folder / MANIFEST
    obstore.put(store, MANIFEST, b"one")
    first = Replica("memory://home", folder, store)
    first.pull(folder, SilentProgress())
    first.remember()
    # Of another size and time: no few digits of one tag make it the other.
    obstore.put(store, MANIFEST, b"two" * 1000)
    os.utime(bucket / MANIFEST, (0, 0))

    tags = folder / ".entity-tags.json"

    def read() -> object:
        given = tags.read_bytes()
        path.write_bytes(b"one")
        Replica("memory://home", folder, store).pull(folder, SilentProgress())
        tags.write_bytes(given)  # which a pull writes, too
        return path.read_text()

    return Format(tags, read, json_values)


def _lease(path: Path) -> Format:
    path.write_bytes(OURS)

    def read() -> object:
        store = MemoryStore()
        obstore.put(store, "lease", path.read_bytes())
        try:
            with Lease(store, "lease", "memory://home/lease"):
                return "free"
        except StoreBusyError:
            return "held"

    return Format(path, read, json_values)


def _lock(path: Path) -> Format:
    path.write_bytes(OURS)
    return Format(path, lambda: holder(path), json_values, open=True)


def _there(found: Any) -> Any:
    if found is None:
        raise CorruptDataError("it is not used")
    return found
