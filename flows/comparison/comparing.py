"""The two sides of a comparison: a report, a results.parquet, or an experiment's last run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.flows.records.history import (
    Run,
    experiments,
    find_run,
    names_run,
    read_history,
)
from permafrost.flows.records.runs import latest_runs
from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.metrics.comparison import (
    Comparison,
    NamedAnswers,
    ScoredMethod,
    compare,
    named_answers,
)
from permafrost.stages.metrics.example_scores import ExampleScores, read_example_scores
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.keys import KEY_LENGTH
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

RESULTS = "results.parquet"
_COLUMNS = ("method", "task", "seed", "role", "metric", "test", "key")


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    label: str
    """Description for tables."""
    methods: tuple[ScoredMethod, ...]
    config: dict[str, Any] | None = None
    """The whole experiment, if the side is a run whose settings were recorded."""
    remarks: tuple[str, ...] = ()
    """What is missing."""
    run: Run | None = None
    """The run that it is, if it is a recorded one."""


def compare_sources(
    a: str, b: str, home_a: Path, home_b: Path, config: BootstrapConfig
) -> tuple[Side, Side, Comparison]:
    """Read both sides and compare b with a.

    Raises:
        InputError: there is no such report, file or experiment, or a file has another content; see also
            `compare`.
        CorruptDataError: an artifact is damaged.
    """
    sides = read_side(a, home_a), read_side(b, home_b)
    return (*sides, compare(sides[0].methods, sides[1].methods, config))


def read_side(source: str, home: Path) -> Side:
    """Find and read the results that a user names.

    Args:
        source: a results.parquet or the folder of a report; a run, `mine@2`; the name of an experiment, for
            its latest run; or the id of a report, which may be shortened.
        home: where to look for reports and for the predictions behind a file. A results.parquet inside a home
            belongs to that home.

    Raises:
        InputError: there is no such thing, or it is not a result.
        CorruptDataError: an artifact is damaged.
    """
    path = Path(source)
    if path.is_dir() and (path / RESULTS).exists():
        path = path / RESULTS
    if path.is_file():
        return Side(source, _read(path, _Kept(ArtifactStore(_home_of(path) or home))))
    artifacts = ArtifactStore(home)
    if names_run(source):
        return _of_run(find_run(home, source), artifacts)
    if (side := _of_latest_run(home, source, artifacts)) is not None:
        return side
    ref, label = _report(source, home, artifacts)
    return Side(label, _read(artifacts.open(ref) / RESULTS, _Kept(artifacts)))


def _of_latest_run(home: Path, experiment: str, artifacts: ArtifactStore) -> Side | None:
    """The latest run of an experiment that is done and more than an extraction, if there is such a one;
    None if none was recorded."""
    runs = list(read_history(home, experiment).runs) if experiment in experiments(home) else []
    done = [run for run in runs if run.state == "done" and run.begun.config is not None]
    if not done:
        return None
    found = next((run for run in reversed(done) if not run.extracted_only), done[-1])
    side, later = _of_run(found, artifacts), runs[-1]
    if later is found:
        return side
    why = "it extracted only" if later.extracted_only else later.state
    said = f"{later.name} came after {found.name}, and is not compared: {why}"
    return replace(side, remarks=(*side.remarks, said))


def _of_run(run: Run, artifacts: ArtifactStore) -> Side:
    """What was recorded of a run; of one of an earlier version what its report has."""
    label = f"{run.name} ({run.state}, {run.time[:16].replace('T', ' ')})"
    if run.ended is not None and run.ended.results:
        rows = [score.model_dump() for score in run.ended.results]
        side = Side(label, _grouped(rows, _Kept(artifacts), run.name), run.begun.config, run=run)
        gone = sum(not artifacts.is_done(parse_ref(row["key"])) for row in rows)
        return side if not gone else replace(side, remarks=(_gone(run.name, gone, len(rows)),))
    if run.extracted_only:
        raise InputError(
            f"{run.name} has no scores: it extracted only; run 'downstream' of the same experiment, and "
            f"compare that run, see 'permafrost runs {run.begun.experiment}'"
        )
    reports = [r for name in run.refs if (r := parse_ref(name)).stage == "report"]
    if not (run.state == "done" and reports and artifacts.is_done(reports[0])):
        why = "is gone" if run.state == "done" else "was not made"
        raise InputError(
            f"{run.name} ({run.state}) has no recorded scores, and its report {why}; compare runs that have "
            f"scores, see 'permafrost runs {run.begun.experiment}'"
        )
    table = artifacts.open(reports[0]) / RESULTS
    return Side(label, _read(table, _Kept(artifacts)), run.begun.config, run=run)


def _gone(run: str, n: int, of: int) -> str:
    which = "all" if n == of else f"{n} of the {of}"
    return (
        f"{run}: {which} artifacts with its results are gone (gc keeps those of the latest and of pinned "
        "runs), and so are their predictions for single examples; its scores are those that were recorded"
    )


def _report(source: str, home: Path, artifacts: ArtifactStore) -> tuple[ArtifactRef, str]:
    runs = {record.experiment: record for record in latest_runs(home)}
    if (run := runs.get(source)) is not None:
        ref = next(parse_ref(a) for a in run.artifacts if a.startswith("report/"))
        return ref, f"{source} (report/{ref.key[:12]}, {run.finished[:16].replace('T', ' ')})"
    try:
        ref = artifacts.find(source)
    except NotFoundError as error:
        raise NotFoundError(
            f"{quoted(source)} is neither a file nor an experiment that ran under {public_name(home)} "
            f"(there are {', '.join(runs) or 'none'}) nor an artifact there; see 'permafrost ls'"
        ) from error
    if ref.stage != "report":
        raise InputError(
            f"{quoted(source)} is {ref.stage}/{ref.key[:12]}, expected an artifact of stage report, or an "
            f"experiment that ran under {public_name(home)} (there are {', '.join(runs) or 'none'}); see "
            "'permafrost ls'"
        )
    return ref, f"report/{ref.key[:12]}"


def _home_of(path: Path) -> Path | None:
    """The home that a file of a report lies in, if its folders are named as in one."""
    parents = path.absolute().parents
    named = [p.name for p in parents[1:3]]
    return parents[3] if named == ["report", "artifacts"] else None


@dataclass(frozen=True)
class _Kept:
    """The predictions kept under a home."""

    artifacts: ArtifactStore

    def answers(self, key: str) -> NamedAnswers | ExampleScores | None:
        """The predictions of a result's artifact; None if it or its predictions do not exist."""
        if len(key.partition("/")[2]) != KEY_LENGTH:
            return None
        ref = parse_ref(key)
        if not self.artifacts.is_done(ref):
            return None
        if (scores := read_example_scores(self.artifacts.open(ref))) is not None:
            return scores
        return named_answers(self.artifacts.open(ref))


def _read(path: Path, kept: _Kept) -> tuple[ScoredMethod, ...]:
    try:
        rows = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason, *_ = str(error).splitlines()
        raise InputError(
            f"{path} is not the {RESULTS} of a report ({reason}); give a report, or the {RESULTS} beside it"
        ) from error
    return _grouped(rows, kept, str(path))


def _grouped(rows: Sequence[dict[str, Any]], kept: _Kept, where: str) -> tuple[ScoredMethod, ...]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["method"]), []).append(row)
    return tuple(_scored(group, kept, where) for group in groups.values())


def _scored(rows: Sequence[dict[str, Any]], kept: _Kept, where: str) -> ScoredMethod:
    first = rows[0]
    if len(metrics := sorted({row["metric"] for row in rows})) > 1:
        raise InputError(
            f"{first['method']} on {first['task']} has the metrics {', '.join(metrics)} in {where}, expected "
            "one for all seeds; make the report again"
        )
    return ScoredMethod(
        method=first["method"],
        task=first["task"],
        metric=first["metric"],
        role=first["role"],
        tests=tuple(row["test"] for row in rows),
        answers=tuple(kept.answers(row["key"]) for row in rows),
    )
