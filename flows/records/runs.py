"""Which artifacts the latest run of each experiment used: the roots of garbage collection."""

import contextlib
import datetime
import re
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.drafts import RUNNING_S
from permafrost.storage.durable import is_there, remove, remove_tree, rewrite
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import store_folder
from permafrost.storage.keys import KEY_LENGTH, digest
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name
from permafrost.storage.sealed import read_sealed, sealed_bytes

_REPORT = "report/"
_UNFINISHED = "unfinished"
_REF = re.compile(rf"[^/]+/[0-9a-f]{{{KEY_LENGTH}}}")


class RunRecord(BaseModel):
    """The latest complete run of one experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    finished: str
    artifacts: tuple[str, ...]
    stores: tuple[str, ...]
    engine: str | None = None
    """What ran the nodes; None in records of earlier versions, and so are the two below."""
    workers: int | None = None
    """Stages side by side; for an existing Dask scheduler it has as many as it has workers, and this is 0."""
    threads: tuple[int, ...] = ()
    """torch's threads in a stage: one number for all, or that of most and that of those that have the machine
    for themselves. Each artifact has its own in `provenance`."""


def run_path(home: Path, experiment: str) -> Path:
    """Where the record of an experiment lies."""
    return home / "runs" / f"{experiment}.json"


def write_run(home: Path, record: RunRecord) -> None:
    """Replace the record of an experiment, also a damaged one."""
    rewrite(run_path(home, record.experiment), sealed_bytes(record.model_dump(mode="json")))


def unfinished_path(home: Path, record: RunRecord) -> Path:
    """Where the record of a run lies that has not finished: one for all that use the same."""
    used = digest([sorted(record.artifacts), sorted(record.stores)])
    return home / "runs" / _UNFINISHED / f"{record.experiment}@{used[:16]}.json"


def unfinished_files(home: Path) -> list[Path]:
    """The records of runs that have not finished; those of earlier versions are called as the experiment."""
    return sorted(home.glob(f"runs/{_UNFINISHED}/*.json"))


def gaps_folder(home: Path, experiment: str) -> Path:
    """Where a run that did not finish leaves a report of what there is."""
    return home / "runs" / _UNFINISHED / experiment


def begin_run(home: Path, record: RunRecord) -> None:
    """Record what a run will use before anything of it is made, so that `gc` keeps it whatever happens."""
    rewrite(unfinished_path(home, record), sealed_bytes(record.model_dump(mode="json")))


def end_run(home: Path, record: RunRecord) -> None:
    """The run has finished: its record is the experiment's.

    Records of unfinished runs of the experiment are removed that keep nothing else from `gc` than this run
    does, reports apart, and those of runs that began more than 30 days ago.
    """
    write_run(home, record)
    for path in unfinished_files(home):
        if _experiment_of(path) == record.experiment and _is_settled(path, record):
            remove(path)
    remove_gaps(home, record.experiment)


def _experiment_of(path: Path) -> str:
    """Whose unfinished run it records; no experiment has an @ in its name."""
    return path.stem.partition("@")[0]


def _is_settled(path: Path, by: RunRecord) -> bool:
    """Whether nobody needs the record of an unfinished run once another has finished; nor a damaged one."""
    try:
        left = read_run(path)
    except FileNotFoundError:
        return False  # another run has removed it
    except CorruptDataError:
        return True
    used = {ref for ref in left.artifacts if not ref.startswith(_REPORT)}
    return _is_old(left) or (used.issubset(by.artifacts) and set(left.stores).issubset(by.stores))


def _is_old(record: RunRecord) -> bool:
    try:
        began = datetime.datetime.fromisoformat(record.finished).timestamp()
    except ValueError:
        return False
    return time.time() - began > RUNNING_S


def remove_gaps(home: Path, experiment: str) -> None:
    """Remove the report that a run which did not finish left; another run may do so in the same moment."""
    if is_there(folder := gaps_folder(home, experiment)):
        with contextlib.suppress(FileNotFoundError):
            remove_tree(folder, first="report.html")


def run_files(home: Path) -> list[Path]:
    """The record of every experiment under `home`, also damaged ones."""
    return sorted(home.glob("runs/*.json"))


def read_run(path: Path) -> RunRecord:
    """One record.

    Raises:
        CorruptDataError: it is damaged, or of another experiment.
    """
    advice = "run the experiment again, or delete the file"
    try:
        record = RunRecord.model_validate(read_sealed(path)[0])
    except (CorruptDataError, ValidationError) as error:
        what = error if isinstance(error, CorruptDataError) else f"{public_name(path)} is damaged"
        raise CorruptDataError(f"{what}; {advice}") from error
    is_latest = path.parent.name != _UNFINISHED
    if record.experiment != (path.stem if is_latest else _experiment_of(path)):
        raise CorruptDataError(
            f"{public_name(path)} is the record of {record.experiment!r}; {advice}"
        )
    return record


def latest_report(home: Path, experiment: str) -> ArtifactRef:
    """The report of an experiment's latest complete run.

    Raises:
        NotFoundError: there is no such run.
        CorruptDataError: its record is damaged.
    """
    names = [path.stem for path in run_files(home)]
    if experiment not in names:
        raise NotFoundError(
            f"the home {public_name(home)} has no complete run of {quoted(experiment)}; there are "
            f"{', '.join(names) or 'none'}"
        )
    used = read_run(run_path(home, experiment)).artifacts
    (report,) = (ref for name in used if (ref := parse_ref(name)).stage == "report")
    return report


def latest_runs(home: Path) -> Iterator[RunRecord]:
    """The latest run of every experiment under `home`.

    Raises:
        CorruptDataError: a record is damaged (garbage collection must not guess what it kept).
    """
    return (read_run(path) for path in run_files(home))


def unfinished_runs(home: Path) -> Iterator[RunRecord]:
    """Runs that have begun and not finished, or are under way.

    Raises:
        CorruptDataError: a record is damaged.
    """
    for path in unfinished_files(home):
        # A run that ends meanwhile removes its own.
        with contextlib.suppress(FileNotFoundError):
            yield read_run(path)


def run_problems(home: Path, path: Path) -> list[str]:
    """What is wrong with a record: it is damaged, or names what is not there."""
    try:
        record = read_run(path)
    except CorruptDataError as error:
        return [str(error)]
    artifacts = ArtifactStore(home)
    refs = [ref for ref in record.artifacts if not _is_done(artifacts, ref)]
    stores = [f"features/{i}" for i in record.stores if not has_record(store_folder(home, i))]
    return [
        f"{public_name(path)} names {name}, which is not there; run the experiment again, or delete the "
        f"file if nothing of that run is wanted"
        for name in (*refs, *stores)
    ]


def _is_done(artifacts: ArtifactStore, name: str) -> bool:
    ref = parse_ref(name) if _REF.fullmatch(name) else None
    return ref is not None and artifacts.is_done(ref)
