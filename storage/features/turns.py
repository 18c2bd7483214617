"""Taking turns at writing a store on an object store: who waits says so, and who writes gives way.

The lease has one holder, and an extraction may take days. Only another machine asks: on the same one both
would want one GPU, which a run keeps while it waits.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from permafrost.storage.features.store import FeatureStore
from permafrost.storage.replica import replica_of

TURN_S = 60.0
"""The shortest turn while others wait; taking the lease over costs a few seconds."""
LOOK_S = 1.0
"""How often to see whether a store is free, or wanted."""
GIVE_WAY_S = 3 * LOOK_S
"""How long whoever gave way leaves the store to those who wait."""
WANTED = "writer.wanted"
"""Object that says that somebody waits; whoever gets the lease removes it."""

Item = TypeVar("Item")


def say_wanted(store: FeatureStore) -> None:
    """Ask whoever writes to give way."""
    path = store.root / WANTED
    if (replica := replica_of(path)) is not None:
        replica.put_word(path)


def no_longer_wanted(store: FeatureStore) -> None:
    """The lease is held; others who wait will say so again."""
    path = store.root / WANTED
    if (replica := replica_of(path)) is not None:
        replica.delete(path)


class Turn:
    """A stretch of writing, from when it is made."""

    def __init__(self, store: FeatureStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = store.root / WANTED, clock
        self._replica = replica_of(self._path)
        self._look_at = clock() + TURN_S
        self.is_over = False
        """Whether it ended because somebody waits."""

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items up to the end of the turn; at least one, so that everybody gets on."""
        for item in items:
            yield item
            if self._is_wanted():
                self.is_over = True
                return

    def _is_wanted(self) -> bool:
        if self._replica is None or self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_S
        return self._replica.exists(self._path)
