"""Commands that change a home or read all of it, on homes in folders and on object stores, and what they must
leave."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import permafrost
from tests.campaign.bucket import BUCKET, Bucket
from tests.campaign.commands import command
from tests.campaign.files import File, files_of
from tests.campaign.homes import Homes, copied, export
from tests.storage.small_store import flip

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
    """Answers what was computed, by stage, where it is a run."""
    told: Work
    """The same as a person has it from the command line."""
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

    told = command("run", file, "--home", home)
    return Case(work, told, homes.every, experiment=name)


def _gc(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    place.begin(homes.garbage)
    left = set(_kept(files_of(homes.kept)))

    def require_all_gone() -> None:
        found = set(_kept(place.files()))
        assert found == left, f"left: {sorted(found - left)[:5]}, gone: {sorted(left - found)[:5]}"

    work = command("gc", "--home", place.home)
    return Case(
        work,
        work,
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
    work = command("repair", homes.store, "--home", place.home)
    return Case(
        work,
        work,
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

    return Case(work, work, homes.first, at_the_end=require_same, also_watched=(out.parent,))


def _transfer(homes: Homes, place: Place, folder: Path, rng: random.Random) -> Case:
    """`pull` into a folder, `push` into an object store."""
    if isinstance(place, Local):
        work = command("pull", homes.store, "--from", homes.every, "--home", place.home)
    else:
        work = command("push", homes.store, "--to", place.home, "--home", homes.every)
    return Case(work, work, homes.every)


CASES: dict[str, Callable[[Homes, Place, Path, random.Random], Case]] = {
    "run": lambda *a: _run(*a, name="first"),
    "widen": lambda *a: _run(*a, name="wide"),
    "gc": _gc,
    "repair": _repair,
    "export": _export,
    "transfer": _transfer,
}
