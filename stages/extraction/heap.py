"""Giving back what the C library keeps.

A pass allocates hundreds of arrays whose sizes change a little from batch to batch. glibc keeps what is
freed for the next one, which rarely fits, so the heap grows for as long as the batches come although less
and less of it is in use.
"""

import ctypes
from collections.abc import Callable
from functools import cache


def release_free_memory() -> None:
    """Return the free pages of the heap to the system; does nothing where the C library cannot."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
