"""The hierarchy of errors.

PermafrostError                  something failed (exit code 1)
├── CorruptDataError             bytes on disk are not what was committed
├── UnreadableError              a file could not be read, which says nothing about its bytes
├── RemovedError                 what was being read was removed meanwhile
├── StoreBusyError               another writer holds the store
├── DiskFullError                not enough room; nothing was half-written
├── ObjectStoreError             an object store could not be reached, or refused
└── InputError                   the user's input is wrong (exit code 2); also a ValueError
    ├── NotFoundError            what was requested does not exist; also a KeyError
    ├── ChangedError             data changed while they were read; left alone they can be
    ├── HubUnreachableError      a backbone is not here, and the hub cannot be asked for it
    ├── IdentityMismatchError    a store was created with another identity
    └── OverflowRangeError       an activation does not fit the storage dtype

Every message says what, both values, where, and what to do.
"""


class PermafrostError(Exception):
    """Something failed, other than through the user's input."""


class CorruptDataError(PermafrostError):
    """Bytes on disk differ from what was committed; they are never returned as data."""


class UnreadableError(PermafrostError):
    """The disk or the system failed to read a file: what is in it is not known, and it is not removed."""


class RemovedError(PermafrostError):
    """What was being read was removed meanwhile, by `gc`, `drop` or `repair`, or by hand."""


class StoreBusyError(PermafrostError):
    """Another process is writing to this store."""

    writer: str = "another process"
    """Who, as far as it says so."""
    elsewhere: bool = False
    """Whether that is on another machine."""


class DiskFullError(PermafrostError):
    """The file system has no room for what was being, or was about to be, written."""


class ObjectStoreError(PermafrostError):
    """An object store could not be reached, or refused."""


class InputError(PermafrostError, ValueError):
    """The user's input is wrong."""


class NotFoundError(InputError, KeyError):
    """What was requested does not exist."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes included.
        return str(self.args[0]) if self.args else ""


class ChangedError(InputError):
    """Data changed while they were read, as where somebody is still writing them."""


class HubUnreachableError(InputError):
    """A backbone is neither here nor in the cache of the hub, which cannot be reached."""


class IdentityMismatchError(InputError):
    """A store on disk was created with another identity than the requested one."""

    differing: tuple[tuple[str, object, object], ...] = ()
    """Field, value of the store, value requested; where the message is of fields."""


class OverflowRangeError(InputError):
    """An activation is outside the range of the storage dtype."""
