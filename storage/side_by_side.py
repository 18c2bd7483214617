"""The same call for several items: one after the other, or in threads that wait for the disk together."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class Each(Protocol):
    """Calls `do` with every item, and returns what it returned, in their order."""

    def __call__(self, do: Callable[[_T], _R], items: Iterable[_T], /) -> list[_R]: ...


def in_turn(do: Callable[[_T], _R], items: Iterable[_T], /) -> list[_R]:
    """One after the other; the first error ends it."""
    return [do(item) for item in items]


@contextmanager
def side_by_side(n_threads: int) -> Generator[Each]:
    """`n_threads` items at a time, in threads that end with the `with` body; with one, in the caller's own.

    An error, that of the first item that had one, is raised when every call has ended, so that none is at
    work on what the caller drops.
    """
    if n_threads == 1:
        yield in_turn
        return
    with ThreadPoolExecutor(n_threads, thread_name_prefix="permafrost-disk") as pool:

        def each(do: Callable[[_T], _R], items: Iterable[_T], /) -> list[_R]:
            futures = list[Future[_R]]()
            try:
                # To begin a thread may fail.
                futures.extend(pool.submit(do, item) for item in items)
            finally:
                wait(futures)
            return [future.result() for future in futures]

        yield each
