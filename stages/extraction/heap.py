"""Giving back what the C library keeps.

A pass allocates hundreds of arrays whose sizes change a little from batch to batch. glibc keeps what is
freed for the next one, which rarely fits, so the heap grows for as long as the batches come although less
and less of it is in use. Giving pages back costs time, as the next pass takes them again, so it waits until
there are many.
"""

import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

SLACK_BYTES = 96 << 20
"""Growth at which free pages are given back. A pass of a small backbone takes 75 MiB of them again; with less
slack than that they would be given back before each batch, at 6 % of the processor time (docs/LOG.md)."""

_SIZES = Path("/proc/self/statm")


class Heap:
    """Gives free pages of the heap back once this process has grown by SLACK_BYTES since it last did.

    Changes no setting of the C library; does nothing where it cannot trim (musl, macOS).
    """

    def __init__(self) -> None:
        self._least = _own_bytes()
        """The smallest this process was since pages were given back."""

    def release_if_grown(self) -> None:
        """Call between batches, when little is in use."""
        now, trim = _own_bytes(), _trim()
        self._least = min(self._least, now)
        if trim is not None and now - self._least > SLACK_BYTES:
            trim(0)
            self._least = _own_bytes()


def _own_bytes() -> int:
    """Resident memory that no file stands behind; 0 where the system does not tell."""
    try:
        _, resident, shared, *_ = map(int, _SIZES.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


@cache
def _trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
