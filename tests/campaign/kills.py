"""SIGKILL at random moments of commands: what was committed stays bit for bit, nothing is wrong, and the same
command goes on and makes only what is missing.

Half of the kills come at a random time, half at a random change of a file, where they spoil most.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.bucket import Bucket, bucket
from tests.campaign.cases import CASES, Case, Local, Place, Remote
from tests.campaign.children import answer_of, forked
from tests.campaign.commands import require_done
from tests.campaign.events import counted, killing, watched
from tests.campaign.files import File, committed, is_draft
from tests.campaign.homes import Homes, differences_in_child, problems_of

MOST = 8
"""Kills of one command before it may end."""


@dataclass
class Kills:
    """Trials of kills in a folder; what a whole command takes is found out once."""

    homes: Homes
    folder: Path
    server: Bucket
    _known: Path
    _n_places: int = 0
    _whole: dict[tuple[str, bool], tuple[float, int]] = field(default_factory=dict[Any, Any])

    def trial(self, rng: random.Random) -> dict[str, Any]:
        """Kill one command a few times, and let it end; returns what the log is to hold.

        Raises:
            AssertionError: something was lost, wrong, or done twice.
        """
        name, remote = rng.choice([*CASES, "widen", "run"]), rng.random() < 0.3
        where = "object home" if remote else "local home"
        try:
            phases = self._kill_and_go_on(name, remote, rng)
        except AssertionError as error:
            raise AssertionError(f"{name}, {where}: {error}") from error
        counts = {"kills": phases.total(), f"kills on {where}s": phases.total(), **phases}
        return {"case": name, "home": where, "counts": counts}

    def _kill_and_go_on(self, name: str, remote: bool, rng: random.Random) -> Counter[str]:
        """Where kills came."""
        seconds, n_events = self._whole_command(name, remote)
        with self._place(remote) as (folder, place):
            case = CASES[name](self.homes, place, folder, rng)
            phases = Counter[str]()
            before, finished = committed(place.files()), False
            for _ in range(rng.randint(1, MOST)):
                if rng.random() < 0.5:
                    at = killing(rng.randint(1, n_events))
                    ended = forked(watched((*place.watched, *case.also_watched), at, case.work))
                else:
                    ended = forked(case.work, rng.uniform(0, seconds))
                files = place.files()
                before = self._require_nothing_lost(place, case, before, files)
                if not ended.killed:
                    require_done(ended)
                    finished = True
                    break
                phases[self._phase(name, files)] += 1
                if rng.random() < 0.5:
                    place.lose_machine()
            if not finished:
                self._go_on(place, case, before)
            self._require_right(place, case)
        return phases

    @contextmanager
    def _place(self, remote: bool) -> Iterator[tuple[Path, Place]]:
        self._n_places += 1
        folder = self.folder / f"trial-{self._n_places}"
        folder.mkdir()
        before = os.environ["PERMAFROST_CACHE"]
        try:
            yield folder, Remote(folder, self.server, self._known) if remote else Local(folder)
        finally:
            os.environ["PERMAFROST_CACHE"] = before
            shutil.rmtree(folder)

    def _whole_command(self, name: str, remote: bool) -> tuple[float, int]:
        """Seconds and changes of files of a command that nothing disturbs."""
        if (name, remote) not in self._whole:
            with self._place(remote) as (folder, place):
                case = CASES[name](self.homes, place, folder, random.Random(0))
                ended = forked(counted((*place.watched, *case.also_watched), case.work))
                require_done(ended)
                self._whole[name, remote] = ended.seconds, ended.answer
        return self._whole[name, remote]

    def _phase(self, name: str, files: dict[str, File]) -> str:
        """What was going on when a kill came, by what is there."""
        if name not in ("run", "widen"):
            return name
        experiment = "wide" if name == "widen" else "first"
        left = Counter(
            ref.split("/")[0]
            for ref in self.homes.refs(experiment)
            if f"artifacts/{ref}/artifact.json" not in files
        )
        if any(
            is_draft(n) and n.startswith("artifacts/") and "-checkpoint" not in n for n in files
        ):
            return "publishing"
        if left["extract"]:
            return "extraction"
        return "training" if left["fit"] else "scores and report"

    def _require_nothing_lost(
        self, place: Place, case: Case, before: dict[str, File], files: dict[str, File]
    ) -> dict[str, File]:
        after = committed(files)
        for file, was in before.items():
            if not case.may_go(file):
                assert after.get(file) == was, f"{file} was committed, and is lost or written again"
        if after and not case.damaged:
            home = place.home
            assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        return after

    def _go_on(self, place: Place, case: Case, before: dict[str, File]) -> None:
        """The same command ends, and computes what was missing."""
        missing = Counter[str]()
        if case.experiment is not None:
            files = place.files()
            missing.update(
                ref.split("/")[0]
                for ref in self.homes.refs(case.experiment)
                if f"artifacts/{ref}/artifact.json" not in files
            )
        ended = forked(case.work)
        require_done(ended)
        if case.experiment is not None:
            assert ended.answer == dict(missing), (
                f"computed {ended.answer}, missing {dict(missing)}"
            )
        self._require_nothing_lost(place, case, before, place.files())

    def _require_right(self, place: Place, case: Case) -> None:
        place.lose_machine()
        home = place.home
        assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        found = differences_in_child(home, case.reference, case.tolerance)
        assert found == [], found[:3]
        case.at_the_end()
        if isinstance(place, Local):
            drafts = [name for name in place.files() if is_draft(name)]
            assert drafts == [], f"left behind: {drafts[:3]}"
        if case.experiment is not None:
            ended = forked(case.work)
            require_done(ended)
            assert ended.answer == {}, f"computed again: {ended.answer}"


@contextmanager
def kills(homes: Homes, folder: Path) -> Iterator[Kills]:
    """Trials inside the block."""
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "known"
    if not known.exists():
        shutil.copytree(os.environ["PERMAFROST_CACHE"], known)
    with bucket() as server:
        yield Kills(homes, folder, server, known)
