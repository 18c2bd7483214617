"""A clock that goes back: what a run of tomorrow has left is in the way of none of today."""

import contextlib
import datetime
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.cases import Local
from tests.campaign.children import answer_of, forked
from tests.campaign.commands import command, require_done, require_told
from tests.campaign.events import killing, watched
from tests.campaign.files import is_draft
from tests.campaign.homes import Homes, differences_in_child, problems_of

AHEAD_S = (90, 3600, 26 * 3600, 45 * 24 * 3600)


def ahead(seconds: float, work: Callable[[], object]) -> Callable[[], object]:
    """Some work of a child whose clock is ahead."""

    def working() -> object:
        now, offset = time.time, datetime.timedelta(seconds=seconds)

        class Ahead(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> "Ahead":
                return super().now(tz) + offset

        time.time = lambda: now() + seconds
        datetime.datetime = Ahead
        return work()

    return working


def trial(homes: Homes, folder: Path, rng: random.Random) -> dict[str, Any]:
    """Run, or be killed, with the clock ahead; then with the clock as it is.

    Raises:
        AssertionError: the order of runs, `gc` or a command follows the clock of files.
    """
    folder.mkdir(parents=True)
    seconds, kills = rng.choice(AHEAD_S), rng.random() < 0.4
    try:
        place = Local(folder)
        run = command("run", homes.experiment("first"), "--home", place.home)
        work = watched(place.watched, killing(rng.randrange(20, 250)), run) if kills else run
        ended = forked(ahead(seconds, work))
        assert ended.killed or not ended.status, ended.tail
        _set_times(Path(place.home), seconds)
        again = ("--set", "methods.mean.optim.lr=0.02")
        require_done(
            forked(command("run", homes.experiment("first"), "--home", place.home, *again))
        )
        require_done(forked(command("run", homes.experiment("wide"), "--home", place.home)))
        _require_order(homes, place)
        home = place.home
        for flags in (("ls",), ("du",), ("plan", homes.experiment("wide")), ("show", homes.store)):
            require_done(forked(command(*flags, "--home", home)))
        latest = json.loads((Path(home) / "runs" / "first.json").read_text())["artifacts"]
        require_done(forked(command("gc", "--home", home)))
        gone = [ref for ref in latest if not (Path(home) / "artifacts" / ref).is_dir()]
        assert not gone, f"gc removed what the latest run used: {gone}"
        assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        assert (found := differences_in_child(home, homes.every)) == [], found[:3]
        assert not [name for name in place.files() if is_draft(name)], "a draft of tomorrow is left"
    finally:
        shutil.rmtree(folder)
    return {"ahead_s": seconds, "counts": {"clocks": 1, "killed" if kills else "ended": 1}}


def _set_times(home: Path, seconds: float) -> None:
    """Files have the times of the clock that is ahead."""
    for path in (home, *home.rglob("*")):
        stat = path.lstat()
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (stat.st_atime + seconds, stat.st_mtime + seconds))


def _require_order(homes: Homes, place: Local) -> None:
    """Runs are counted as they began, whatever the clock said."""
    ended = forked(command("runs", "first", "--home", place.home))
    require_told(ended)
    first, second = ended.said.find("first@1"), ended.said.find("first@2")
    assert 0 <= first < second, f"not in order: {ended.said}"
