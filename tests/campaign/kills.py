"""SIGKILL at random moments of commands: what was committed stays bit for bit, nothing is wrong, and the same
command goes on and makes only what is missing.

Half of the kills come at a random time, half at a random change of a file, where they spoil most.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import permafrost
from tests.campaign.bucket import BUCKET, Bucket, bucket
from tests.campaign.children import answer_of, forked
from tests.campaign.commands import command, require_done
from tests.campaign.events import counted, killing, watched
from tests.campaign.files import File, committed, files_of, is_draft
from tests.campaign.homes import (
    Homes,
    copied,
    differences_in_child,
    export,
    problems_of,
)
from tests.storage.small_store import flip

MOST = 4
"""Kills of one command before it may end."""
TOLERANCE = 2e-3
"""What `repair` computes again was in other batches the first time."""
Work = Callable[[], object]


class Place(Protocol):
    """Where a home is."""

    home: str

    @property
    def watched(self) -> tuple[Path, ...]:
        """Folders of this machine in which it changes."""
        ...

    def begin(self, source: Path) -> None:
        """A home like another."""
        ...

    def files(self) -> dict[str, File]:
        """All that it holds."""
        ...

    def lose_machine(self) -> None:
        """Whoever goes on has seen nothing of it, if it is not on this machine's disk."""
        ...


class Local:
    """In a folder."""

    def __init__(self, folder: Path) -> None:
        self.home = str(folder / "home")
        self.watched = (folder / "home",)

    def begin(self, source: Path) -> None:
        copied(source, Path(self.home))

    def files(self) -> dict[str, File]:
        return files_of(Path(self.home))

    def lose_machine(self) -> None:
        pass


class Remote:
    """On an object store."""

    def __init__(self, folder: Path, server: Bucket, known: Path) -> None:
        self._folder, self._server, self._known, self._n = folder, server, known, 0
        self.home = f"s3://{BUCKET}/{folder.name}"
        self.lose_machine()

    @property
    def watched(self) -> tuple[Path, ...]:
        return (self._cache,)

    def begin(self, source: Path) -> None:
        self._server.put(self._folder.name, source)

    def files(self) -> dict[str, File]:
        return self._server.files(self._folder.name)

    def lose_machine(self) -> None:
        self._n += 1
        self._cache = self._folder / f"cache-{self._n}"
        # What is known of the backbone stays: it costs a second, and is no part of the home.
        shutil.copytree(self._known, self._cache)
        os.environ["PERMAFROST_CACHE"] = str(self._cache)


@dataclass(frozen=True)
class Case:
    """A command on a home."""

    work: Work
    reference: Path
    """A home whose stores and artifacts the home's must equal in the end."""
    experiment: str | None = None
    """The one that is run."""
    tolerance: float = 0.0
    may_go: Callable[[str], bool] = lambda name: False
    """Committed files that the command removes."""
    damaged: bool = False
    """Whether `verify` tells of damage until the command has ended."""
    at_the_end: Callable[[], object] = lambda: None
    also_watched: tuple[Path, ...] = ()


def _run(homes: Homes, place: Place, folder: Path, rng: random.Random, name: str) -> Case:
    file, home = homes.experiment(name), place.home
    if name == "wide":
        place.begin(homes.first)

    def work() -> dict[str, int]:
        return dict(permafrost.run(file, home=home, engine="serial").computed)

    return Case(work, homes.every, experiment=name)


def _gc(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    place.begin(homes.garbage)
    left = set(_kept(files_of(homes.kept)))

    def require_all_gone() -> None:
        found = set(_kept(place.files()))
        assert found == left, f"left: {sorted(found - left)[:5]}, gone: {sorted(left - found)[:5]}"

    return Case(
        command("gc", "--home", place.home),
        homes.kept,
        may_go=lambda name: name not in left,
        at_the_end=require_all_gone,
    )


def _kept(files: dict[str, File]) -> Iterator[str]:
    """Names in stores, and in artifacts that have their manifest (docs/limits.md: on an object store a killed
    `gc` can leave others)."""
    for name in files:
        parts = name.split("/")
        if parts[0] == "features" and not name.endswith((".lock", "writer.lease")):
            yield name
        if parts[0] == "artifacts" and f"{'/'.join(parts[:3])}/artifact.json" in files:
            yield name


def _repair(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    damaged = copied(homes.every, folder / "damaged")
    shards = sorted((damaged / "features" / homes.store).rglob("features.zarr/**/c/**/*"))
    shards = [p for p in shards if p.is_file() and "text_of_token" not in p.parts]
    hit: set[str] = set()
    for path in rng.sample(shards, 3):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        # Near the beginning, where rows are: what nobody uses is not written.
        flip(path, rng.randrange(200))
        hit.add(path.relative_to(damaged).as_posix())
    receipts = {
        name
        for name, file in files_of(damaged).items()
        if file.shard and _shard_of(name, file) in hit
    }
    place.begin(damaged)
    return Case(
        command("repair", homes.store, "--home", place.home),
        homes.every,
        tolerance=TOLERANCE,
        may_go=lambda name: name in hit or name in receipts,
        damaged=True,
    )


def _shard_of(receipt: str, file: File) -> str:
    return f"{'/'.join(receipt.split('/')[:2])}/{file.shard}"


def _export(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    place.begin(homes.first)
    # The folder's name stands in what is exported.
    out = folder / "out" / homes.exported.name
    out.parent.mkdir()
    right = {name: file.digest for name, file in files_of(homes.exported).items()}

    def require_same() -> None:
        found = {name: file.digest for name, file in files_of(out.parent).items()}
        expected = {f"{out.name}/{name}": digest for name, digest in right.items()}
        assert found == expected, "not the same export"

    def work() -> None:
        if not out.exists():
            export(homes, place.home, out)()

    return Case(work, homes.first, at_the_end=require_same, also_watched=(out.parent,))


def _transfer(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    """`pull` into a folder, `push` into an object store."""
    if isinstance(place, Local):
        work = command("pull", homes.store, "--from", homes.every, "--home", place.home)
    else:
        work = command("push", homes.store, "--to", place.home, "--home", homes.every)
    return Case(work, homes.every)


CASES: dict[str, Callable[[Homes, Place, Path, random.Random], Case]] = {
    "run": lambda *a: _run(*a, name="first"),
    "widen": lambda *a: _run(*a, name="wide"),
    "gc": _gc,
    "repair": _repair,
    "export": _export,
    "transfer": _transfer,
}


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
        name, remote = rng.choice([*CASES, "widen", "run"]), rng.random() < 0.35
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
        where = "object home" if remote else "local home"
        counts = {"kills": phases.total(), f"kills on {where}s": phases.total(), **phases}
        return {"case": name, "home": where, "counts": counts}

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
