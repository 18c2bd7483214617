"""The history of an experiment: a record of every run, written once, and never removed by us.

`<home>/runs/history/<experiment>/000001.begun.json` is written before anything of a run is made, with what
the run was asked for; `000001.ended.json` when it is over, with what came of it. A run that was killed, or
ended on a full disk, may have no second file. Runs of an experiment are counted from 1: `mine@1`.
"""

import datetime
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.flows.records.runs import read_run, run_files, run_path
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import RUNNING_S, is_alive
from permafrost.storage.durable import create_durably, is_there, write_durably
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name
from permafrost.storage.sealed import read_sealed, sealed_bytes

Outcome = Literal["done", "failed", "stopped"]
State = Literal["done", "failed", "stopped", "running", "not ended"]
Half = Literal["begun", "ended"]
REPORT = "report"
"""Stage in which a whole run ends."""
_NUMBER = "[0-9]{1,18}"
"""No more digits than a number of a run can have: Python refuses to read thousands of them."""
_FILE = re.compile(r"([0-9]{6,18})\.(begun|ended)\.json")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CellOf(_Part):
    """What an artifact is of, in the words of the experiment; None where that has no meaning."""

    method: str | None = None
    task: str | None = None
    seed: int | None = None


class UsedArtifact(_Part):
    """An artifact that a run was to make or to find."""

    ref: str
    """`<stage>/<key>`."""
    label: str
    of: tuple[CellOf, ...] = ()
    """Several where methods or tasks of the experiment come to the same."""
    candidate: str | None = None
    """The point of the grid, for one of the fits that are chosen from: `layer hidden/6`."""


class RunScore(_Part):
    """A result of a run."""

    method: str
    task: str
    seed: int
    role: Literal["method", "baseline", "control"]
    metric: str
    dev: float | None
    test: float
    choice: dict[str, str | int | float | bool | None] = {}
    """What was chosen on dev."""
    key: str
    """`<stage>/<key>` of the artifact that holds it."""


class RunBegun(_Part):
    """What a run was asked for."""

    experiment: str
    number: int
    begun: str | None
    """Time; None of a run of an earlier version, as are those below."""
    overrides: tuple[str, ...] | None
    """`path.to.field=value` each."""
    config_digest: str | None
    config: dict[str, Any] | None
    """The whole experiment, defaults included, with overrides and environment variables put in."""
    artifacts: tuple[UsedArtifact, ...]
    stores: tuple[str, ...]
    corpora: dict[str, str] = {}
    """The artifact `corpus/<key>` of each task."""
    engine: str | None = None
    workers: int | None = None
    threads: tuple[int, ...] = ()
    process: str | None = None
    """Who ran it, see `storage.drafts.owner`."""
    id: str | None = None
    """Drawn, so that no two machines can have written the same record; None of earlier versions."""


class RunEnded(_Part):
    """What came of a run."""

    experiment: str
    number: int
    ended: str
    seconds: float | None
    """Wall time from its beginning."""
    outcome: Outcome
    computed: dict[str, int] = {}
    """Number of artifacts by stage, and so in the three below."""
    reused: dict[str, int] = {}
    failed: dict[str, int] = {}
    skipped: dict[str, int] = {}
    stores: tuple[str, ...] = ()
    """Feature stores, with those that were not known before the backbone was trained."""
    results: tuple[RunScore, ...] = ()
    error: str | None = None
    """Of a run that failed."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment."""

    begun: RunBegun
    ended: RunEnded | None

    @property
    def name(self) -> str:
        """As people write it: `mine@2`."""
        return run_name(self.begun.experiment, self.begun.number)

    @property
    def state(self) -> State:
        """How it ended, or whether it is under way; `not ended` if another machine would have to tell."""
        if self.ended is not None:
            return self.ended.outcome
        alive = None if self.begun.process is None else is_alive(self.begun.process)
        return "not ended" if alive is None else "running" if alive else "stopped"

    @property
    def may_be_running(self) -> bool:
        """Whether its artifacts may be in use right now."""
        state = self.state
        if state != "not ended" or self.begun.begun is None:
            return state == "running"
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(
            self.begun.begun
        )
        return age.total_seconds() < RUNNING_S

    @property
    def time(self) -> str:
        """When it began, else when it ended."""
        return self.begun.begun or ("" if self.ended is None else self.ended.ended)

    @property
    def extracted_only(self) -> bool:
        """Whether it ran only what needs the backbone, as the deployment `extract` does."""
        if self.ended is None or self.ended.outcome != "done" or self.ended.results:
            return False
        stages = {*self.ended.computed, *self.ended.reused}
        # Records of earlier versions count no stages.
        return bool(stages) and REPORT in {ref.partition("/")[0] for ref in self.refs} - stages

    @property
    def refs(self) -> tuple[str, ...]:
        """Every artifact that it names."""
        return tuple(a.ref for a in self.begun.artifacts)

    @property
    def stores(self) -> tuple[str, ...]:
        """Ids of its feature stores, as far as they are known."""
        return self.begun.stores if self.ended is None else self.ended.stores


@dataclass(frozen=True)
class History:
    """All runs of an experiment that can be read, and what is wrong with the others."""

    runs: tuple[Run, ...]
    """By number."""
    problems: tuple[tuple[Path, str], ...]


def run_name(experiment: str, number: int) -> str:
    """A run as people write it: `mine@2`."""
    return f"{experiment}@{number}"


def history_folder(home: Path, experiment: str) -> Path:
    """Where the records of an experiment lie."""
    return home / "runs" / "history" / experiment


def half_path(home: Path, experiment: str, number: int, half: Half) -> Path:
    """The file of a run's beginning or end."""
    return history_folder(home, experiment) / f"{number:06d}.{half}.json"


def experiments(home: Path) -> list[str]:
    """Every experiment that has run under a home."""
    recorded = (p.parent.name for p in home.glob("runs/history/*/*.json"))
    return sorted({*recorded, *(p.stem for p in run_files(home))})


def begin(home: Path, experiment: str, record: Callable[[int], RunBegun]) -> RunBegun:
    """Give a run its number, and record its beginning under it; two runs never get the same.

    The only record that an earlier version left becomes that of run 1.
    """
    folder, drawn = history_folder(home, experiment), {"id": uuid.uuid4().hex}
    with _numbering(folder):
        if not (numbers := _numbers(folder)):
            _adopt_earlier(home, experiment)
            numbers = _numbers(folder)
        begun = record(max(numbers, default=0) + 1).model_copy(update=drawn)
        # On an object store another machine may count as well.
        while not create_durably(half_path(home, experiment, begun.number, "begun"), _bytes(begun)):
            begun = record(begun.number + 1).model_copy(update=drawn)
    return begun


def _adopt_earlier(home: Path, experiment: str) -> None:
    try:
        earlier = _earlier(home, experiment)
    except CorruptDataError:
        return  # the end of this run replaces it
    if earlier is not None:
        assert earlier.ended is not None, "earlier versions recorded runs that had finished"
        create_durably(half_path(home, experiment, 1, "begun"), _bytes(earlier.begun))
        create_durably(half_path(home, experiment, 1, "ended"), _bytes(earlier.ended))


def end(home: Path, ended: RunEnded) -> None:
    """Record the end of a run; does nothing if that is recorded already."""
    path = half_path(home, ended.experiment, ended.number, "ended")
    if not is_there(path):
        write_durably(path, _bytes(ended))


def _bytes(part: BaseModel) -> bytes:
    return sealed_bytes(part.model_dump(mode="json"))


@contextmanager
def _numbering(folder: Path) -> Generator[None]:
    """For one process of this machine at a time."""
    path = folder / "numbers.lock"
    with disk_errors_named(path):
        folder.mkdir(parents=True, exist_ok=True)
        # A link would lock a file elsewhere, which another home may lock as well.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _numbers(folder: Path) -> list[int]:
    found = (_FILE.fullmatch(path.name) for path in folder.glob("*.json"))
    return sorted({int(match[1]) for match in found if match is not None})


def read_history(home: Path, experiment: str) -> History:
    """All runs of an experiment; a damaged record hides no other."""
    folder = history_folder(home, experiment)
    numbers, problems, runs = _numbers(folder), list[tuple[Path, str]](), list[Run]()
    for path in sorted(folder.glob("*.json")):
        if _FILE.fullmatch(path.name) is None:
            problems.append((path, f"{public_name(path)} is no record of a run; {_ADVICE}"))
    for number in numbers:
        try:
            runs.append(_read(home, experiment, number))
        except CorruptDataError as error:
            problems.append((half_path(home, experiment, number, "begun"), str(error)))
    if not numbers:
        try:
            earlier = _earlier(home, experiment)
        except CorruptDataError as error:
            problems.append((run_path(home, experiment), str(error)))
        else:
            runs += [] if earlier is None else [earlier]
    return History(tuple(runs), tuple(problems))


def histories(home: Path) -> dict[str, History]:
    """The history of every experiment under a home."""
    return {name: read_history(home, name) for name in experiments(home)}


def history_problems(found: Iterable[History]) -> list[tuple[Path, str]]:
    """What is wrong with records."""
    return [problem for history in found for problem in history.problems]


_ADVICE = "put the file back from a copy, or delete it to let go of that run"
_Half = TypeVar("_Half", RunBegun, RunEnded)


def _read(home: Path, experiment: str, number: int) -> Run:
    first, last = (half_path(home, experiment, number, half) for half in ("begun", "ended"))
    if not is_there(first):
        raise CorruptDataError(f"{public_name(first)} is gone, and {last.name} is there; {_ADVICE}")
    begun = _read_half(first, RunBegun, experiment, number)
    ended = _read_half(last, RunEnded, experiment, number) if is_there(last) else None
    return Run(begun, ended)


def _read_half(path: Path, part: type[_Half], experiment: str, number: int) -> _Half:
    try:
        fields, is_sealed = read_sealed(path)
        found = part.model_validate(fields)
    except (CorruptDataError, ValidationError) as error:
        what = error if isinstance(error, CorruptDataError) else f"{public_name(path)} is damaged"
        raise CorruptDataError(f"{what}; {_ADVICE}") from error
    if not is_sealed:
        raise CorruptDataError(
            f"{public_name(path)} is damaged: it has lost its checksum; {_ADVICE}"
        )
    if (found.experiment, found.number) != (experiment, number):
        other = run_name(found.experiment, found.number)
        raise CorruptDataError(f"{public_name(path)} is the record of {other}; {_ADVICE}")
    return found


def _earlier(home: Path, experiment: str) -> Run | None:
    """The only run that an earlier version has left a record of.

    Raises:
        CorruptDataError: the record is damaged.
    """
    path = run_path(home, experiment)
    if not is_there(path):
        return None
    record = read_run(path)
    begun = RunBegun(
        experiment=experiment,
        number=1,
        begun=None,
        overrides=None,
        config_digest=None,
        config=None,
        artifacts=tuple(UsedArtifact(ref=ref, label=ref) for ref in record.artifacts),
        stores=record.stores,
        engine=record.engine,
        workers=record.workers,
        threads=record.threads,
    )
    ended = RunEnded(
        experiment=experiment,
        number=1,
        ended=record.finished,
        seconds=None,
        outcome="done",
        stores=record.stores,
    )
    return Run(begun, ended)


def names_run(text: str) -> bool:
    """Whether a text is written as the name of a run: `mine@2`."""
    return re.fullmatch(rf".+@{_NUMBER}", text) is not None


def find_run(home: Path, name: str) -> Run:
    """A run by its name, `mine@2`.

    Raises:
        NotFoundError: there is no such experiment or no such run; the message names those there are.
        CorruptDataError: its record is damaged.
    """
    experiment, _, number = name.rpartition("@")
    known = experiments(home)
    if not re.fullmatch(_NUMBER, number) or experiment not in known:
        raise NotFoundError(
            f"{quoted(name)} names no run; write an experiment and a number, as in mine@2. The experiments "
            f"that have run here are {', '.join(known) or 'none'}; see 'permafrost runs'"
        )
    history = read_history(home, experiment)
    for run in history.runs:
        if run.begun.number == int(number):
            return run
    for path, problem in history.problems:
        if (found := _FILE.fullmatch(path.name)) is not None and int(found[1]) == int(number):
            raise CorruptDataError(problem)
    raise NotFoundError(
        f"{experiment} has no run {number}; it has {_spans([r.begun.number for r in history.runs])}"
    )


def _spans(numbers: list[int]) -> str:
    """`@1 to @3, @7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"@{a}" if a == b else f"@{a} to @{b}" for a, b in spans) or "none"


def by_stage(stages: Iterable[str]) -> Mapping[str, int]:
    """How often each stage occurs."""
    counts: dict[str, int] = {}
    for stage in stages:
        counts[stage] = counts.get(stage, 0) + 1
    return counts
