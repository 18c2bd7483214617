"""A write lease as an object: created if absent, renewed while held, taken over when it has expired."""

import contextlib
import datetime
import json
import os
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import ObjectStore

from permafrost.storage.drafts import is_alive, owner
from permafrost.storage.errors import ObjectStoreError, StoreBusyError

UNTIL_FREE = (
    "wait until it ends ('--wait' of a command does, and 'runtime.extract.busy: wait' of an experiment), or "
    "use another home"
)
"""What to do about another writer, on the command line and in Python."""
TTL_S = 180.0
"""A lease that was not renewed for this long, by the object store's clock, has expired."""
RENEWAL_S = 20.0
LAST_S = 30.0
"""How long before others may take it its holder gives it up: a commit that has begun takes time too."""


class Lease:
    """Use as a context manager: held inside the block."""

    def __init__(self, store: ObjectStore, key: str, url: str) -> None:
        self._store, self._key, self._url = store, key, url
        self._tag: str | None = None
        self._id, self._written = uuid.uuid4().hex, b""
        self._ended = threading.Event()
        self._lost: str | None = None
        self._begun = self._renewed = _now()
        """When the last attempt to write it began, and the last one that succeeded."""
        self._thread = threading.Thread(target=self._renew, name="permafrost-lease", daemon=True)

    def require(self) -> None:
        """Call before every commit.

        Raises:
            StoreBusyError: the lease could not be renewed in time, so another writer may hold it.
        """
        if (lost := self.lost) is not None:
            raise StoreBusyError(
                f"the write lease {self._url} was lost ({lost}); what was committed stays, the rest was not "
                f"written. Run the same command again"
            )

    def __enter__(self) -> "Lease":
        try:
            self._tag = self._put("create")
        except BaseError as error:
            try:
                # An answer may be lost on the way: then the client has tried again, or does not know.
                self._tag = self._tag_if_ours()
                if self._tag is None and isinstance(error, AlreadyExistsError):
                    self._tag = self._take_over()
            except BaseError as later:
                raise ObjectStoreError(f"cannot write {self._url}: {_line(later)}") from later
            if self._tag is None:
                raise ObjectStoreError(f"cannot write {self._url}: {_line(error)}") from error
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self.lost is None:
            # If it cannot be deleted, it expires by itself.
            with contextlib.suppress(BaseError, FileNotFoundError):
                obstore.delete(self._store, self._key)

    @property
    def lost(self) -> str | None:
        """Why another process may hold it now; None while none can."""
        # Nothing may have been tried meanwhile: an answer is waited for, or the process was halted.
        if self._lost is None and self._age_s > TTL_S - LAST_S:
            self._lost = f"not renewed for {self._age_s:.0f} s"
        return self._lost

    @property
    def _age_s(self) -> float:
        return _now() - self._renewed

    def holder(self) -> str | None:
        """Who holds it now, read without taking it; None if nobody does.

        Raises:
            ObjectStoreError: it cannot be read.
        """
        try:
            meta, holder = self._read()
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise ObjectStoreError(f"cannot read {self._url}: {_line(error)}") from error
        if _is_dead(holder):
            return None
        # Who may not write there does not learn the time there, and takes it for held.
        with contextlib.suppress(BaseError):
            if self._age_of(meta) >= TTL_S:
                return None
        return _named(holder)

    def _read(self) -> tuple[Any, dict[str, Any]]:
        found = obstore.get(self._store, self._key)
        return found.meta, _holder(bytes(found.bytes()))

    def _age_of(self, meta: Any) -> float:
        return (self._time_there() - meta["last_modified"]).total_seconds()

    def _put(self, mode: Any) -> str | None:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "process": owner(),
            "renewed": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "id": self._id,
        }
        self._written, self._begun = json.dumps(holder).encode(), _now()
        result = obstore.put(self._store, self._key, self._written, mode=mode, use_multipart=False)
        self._renewed = self._begun
        return result["e_tag"]

    def _tag_if_ours(self) -> str | None:
        """The entity tag of the lease if it is what was written last; None if it is not."""
        try:
            found = obstore.get(self._store, self._key)
            is_ours = bytes(found.bytes()) == self._written
        except FileNotFoundError:
            return None
        if is_ours:
            self._renewed = self._begun
        return found.meta["e_tag"] if is_ours else None

    def _take_over(self) -> str | None:
        try:
            meta, holder = self._read()
        except FileNotFoundError:
            # Freed in between.
            return self._put("create")
        age = self._age_of(meta)
        if age < TTL_S and not _is_dead(holder):
            writer = _named(holder)
            busy = StoreBusyError(
                f"the store is being written by {writer} ({self._url}, renewed {age:.0f} s ago); "
                f"{UNTIL_FREE}. If that process is dead, the lease ends in {TTL_S - age:.0f} s. Nothing was "
                "changed"
            )
            busy.writer, busy.elsewhere = writer, holder["host"] != socket.gethostname()
            raise busy
        try:
            return self._put({"e_tag": meta["e_tag"]})
        except (PreconditionError, FileNotFoundError) as error:
            raise StoreBusyError(
                f"another process has just taken the lease {self._url}; wait until it ends. Nothing was "
                f"changed"
            ) from error

    def _time_there(self) -> datetime.datetime:
        """The time by the clock that dates the lease, the object store's: this machine's may be wrong."""
        key = f"{self._key}.{self._id}"
        obstore.put(self._store, key, b"", use_multipart=False)
        try:
            return obstore.head(self._store, key)["last_modified"]
        finally:
            with contextlib.suppress(BaseError, FileNotFoundError):
                obstore.delete(self._store, key)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_S):
            if self.lost is not None:
                return
            try:
                self._tag = self._put({"e_tag": self._tag})
            except (PreconditionError, FileNotFoundError):
                # Or the answer to a renewal was lost, and the client has tried again.
                if (tag := self._read_back()) is None:
                    self._lost = "another process took it"
                    return
                self._tag = tag
            except BaseError as error:
                self._tag = self._read_back() or self._tag
                if self._age_s > TTL_S / 2:
                    self._lost = f"not renewed for {self._age_s:.0f} s: {_line(error)}"
                    return

    def _read_back(self) -> str | None:
        """As `_tag_if_ours`; None as well if it cannot be read."""
        with contextlib.suppress(BaseError):
            return self._tag_if_ours()
        return None


def _holder(content: bytes) -> dict[str, Any]:
    """The holder of a lease; unknown if the object is damaged, which then expires like any other."""
    try:
        found = json.loads(content)
        process = str(found.get("process", ""))
        return {"pid": int(found["pid"]), "host": str(found["host"]), "process": process}
    except (ValueError, LookupError, TypeError, OverflowError, AttributeError):
        return {"pid": 0, "host": "an unknown machine", "process": ""}


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}"


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether the holder is a process of this machine that has ended. Machines and containers may share a
    name, so that says nothing."""
    try:
        return is_alive(holder["process"]) is False
    except ValueError:  # written by an earlier version, or damaged
        return False


def _now() -> float:
    """Seconds, on while the machine sleeps where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
