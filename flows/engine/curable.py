"""Which errors a second try may cure, and how long to wait before it."""

import torch
from httpx import HTTPError, TransportError

from permafrost.storage.errors import InputError, ObjectStoreError, StoreBusyError

CURABLE = (
    StoreBusyError,
    ObjectStoreError,
    OSError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
)
"""Errors that a retry may cure: a busy store, a flaky file system, a lost device, device memory that another
program held for a moment. Not wrong input, damaged data or our own bugs. An extraction splits its batches
itself, and a single text that does not fit is not retried."""
_LASTING = (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of a file system that are there the next time as well."""
DELAYS_S = (2, 10, 60)
"""Before the second try, the third and the last."""


BUSY_HERE = (429, 500, 502, 503, 504)
"""Answers of a server that has too much to do, or is not well."""
_OFFLINE = "OfflineModeIsEnabled"
"""Of the hub's client, which was told to ask nobody: one of its connection errors."""


def is_curable(error: BaseException | None) -> bool:
    """Whether the same may succeed when it is tried again."""
    if isinstance(error, CURABLE):
        return not isinstance(error, _LASTING) and type(error).__name__ != _OFFLINE
    return isinstance(error, InputError | HTTPError) and _is_of_the_network(error)


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether the hub or another server could not be reached, or answered that it cannot now."""
    while error is not None:
        if type(error).__name__ == _OFFLINE:
            return False
        answer = getattr(getattr(error, "response", None), "status_code", None)
        if (
            isinstance(error, ConnectionError | TimeoutError | TransportError)
            or answer in BUSY_HERE
        ):
            return True
        error = error.__cause__
    return False
