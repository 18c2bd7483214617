"""A disk that is full, or a right that is lost, from any change of a file on: a line says so, nothing is lost
or half-written, and the same command goes on once it may."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.campaign.cases import CASES, Local
from tests.campaign.children import answer_of, forked
from tests.campaign.commands import require_done, require_told
from tests.campaign.events import At, counted, filling, forbidding, watched
from tests.campaign.files import committed, is_draft
from tests.campaign.homes import Homes, differences_in_child, problems_of

Fault = Literal["full", "forbidden"]
_AT: dict[Fault, Callable[[int], At]] = {"full": filling, "forbidden": forbidding}
_SAID: dict[Fault, tuple[str, ...]] = {
    "full": ("no room to write", "no room on the disk"),
    "forbidden": ("Permission denied", "Read-only file system"),
}


@dataclass
class Disks:
    """Every change of a file that the commands make, in a random order."""

    homes: Homes
    folder: Path
    fault: Fault
    seed: int
    _points: list[tuple[str, int]] | None = None

    def trial(self, number: int, rng: random.Random) -> dict[str, Any] | None:
        """The fault at one event of one command; None when there are no more.

        Raises:
            AssertionError: something was lost, wrong, or not said.
        """
        if self._points is None:
            self._points = [(name, at) for name in CASES for at in self._events(name)]
            random.Random(self.seed).shuffle(self._points)
        if number >= len(self._points):
            return None
        name, at = self._points[number]
        with self._folder() as folder:
            counts = self._fail_and_go_on(folder, name, at)
        return {"case": name, "at": at, "of": len(self._points), "counts": {"faults": 1, **counts}}

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = self.folder / "trial"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def _events(self, name: str) -> range:
        with self._folder() as folder:
            place = Local(folder)
            case = CASES[name](self.homes, place, folder, random.Random(0))
            ended = forked(counted((*place.watched, *case.also_watched), case.told))
            require_done(ended)
            return range(1, ended.answer + 1)

    def _fail_and_go_on(self, folder: Path, name: str, at: int) -> dict[str, int]:
        place = Local(folder)
        case = CASES[name](self.homes, place, folder, random.Random(0))
        before = committed(place.files())
        watching = watched((*place.watched, *case.also_watched), _AT[self.fault](at), case.told)
        ended = forked(watching)
        require_told(ended)
        if ended.status:
            said = " ".join(ended.said.split())
            assert any(text in said for text in _SAID[self.fault]), (
                f"does not say why: {ended.tail}"
            )
        files = place.files()
        after = committed(files)
        for file, was in before.items():
            assert case.may_go(file) or after.get(file) == was, f"{file} was lost or written again"
        if self.fault == "full":
            left = [n for n in files if is_draft(n) and "-checkpoint" not in n]
            assert not left, f"half-written: {left[:3]}"
        home = place.home
        if after and not case.damaged:
            assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        require_done(forked(case.told))
        assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        found = differences_in_child(home, case.reference, case.tolerance)
        assert found == [], found[:3]
        case.at_the_end()
        left = [n for n in place.files() if is_draft(n)]
        assert not left, f"left behind: {left[:3]}"
        return {"refused" if ended.status else "done all the same": 1}
