"""Where each text of a store is, kept as segments are added to it and dropped from it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from permafrost.storage.features.places import Places
from permafrost.storage.features.seen import WORTH, keep_tables, marks_of_tables, seen_tables
from permafrost.storage.features.segments import Segment


class TextIndex:
    """The places of a store's texts; of a large store they are kept for the next process that opens it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._places = Places()
        self.sha256: dict[int, str] = {}
        """SHA-256 of the table of every segment read so far."""

    def of(self, numbers: Sequence[int], read: Callable[[int], Segment]) -> Places:
        """The places in these segments, ascending; `read` is called for tables that were not read yet."""
        places = self._places
        if places.segments != tuple(numbers[: len(places.segments)]):
            # A segment has been dropped or restored since.
            places = Places()
        marks = None
        if len(numbers) - len(places.segments) >= WORTH:
            marks = marks_of_tables(self._root, numbers)
            if not places.segments and (seen := seen_tables(self._root, marks)) is not None:
                places = seen.places
                self.sha256.update(seen.sha256)
        new = numbers[len(places.segments) :]
        for number in new:
            places = places.adding(number, read(number).table)
        self._places = places
        if marks is not None and len(new) >= WORTH:
            keep_tables(self._root, marks, places, self.sha256)
        return places

    def added(self, segment: Segment) -> None:
        """A segment has just been written: it need not be read."""
        last = self._places.segments[-1] if self._places.segments else -1
        self.sha256[segment.number] = segment.sha256
        if segment.number == last + 1:
            self._places = self._places.adding(segment.number, segment.table)

    def remember(self) -> None:
        """Keep what was read of a large store for the next process that opens it."""
        if len(self._places.segments) >= WORTH:
            marks = marks_of_tables(self._root, self._places.segments)
            keep_tables(self._root, marks, self._places, self.sha256)
