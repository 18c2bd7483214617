"""What every artifact of a home is, in the words of experiments: for listings, which read its manifest alone.

Names are those of the run records; for artifacts of earlier versions those that reports and scores give.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from permafrost.flows.grid_points import grid_points
from permafrost.flows.records.history import CellOf, History, Run, RunScore
from permafrost.storage.artifacts import MANIFEST, ArtifactRef, ArtifactStore
from permafrost.storage.durable import is_there, read_json
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import KEY_LENGTH
from permafrost.storage.sealed import CHECKSUM

_HEADS = ("fit", "choose", "finetune", "embed")
"""Stages of what a score is of."""
_CHOOSING = ("linear", "control")
"""Stages that choose on dev by themselves."""
CHOOSE = "choose"
_METRICS = "metrics.json"


@dataclass(frozen=True)
class Row:
    """One artifact."""

    ref: ArtifactRef
    of: tuple[CellOf, ...]
    """What it is of; several where methods or tasks come to the same, none if that is not known."""
    metric: str | None
    dev: float | None
    test: float | None
    candidate: str | None
    """The point of the grid that it is, or that was chosen: `layer hidden/6`."""
    summary: Mapping[str, Any]
    published: str
    bytes: int

    @property
    def id(self) -> str:
        """`<stage>/<key>`."""
        return str(self.ref)

    @property
    def methods(self) -> str:
        """Of which methods, for people."""
        return _joined(c.method for c in self.of)

    @property
    def tasks(self) -> str:
        """Of which tasks, for people."""
        return _joined(c.task for c in self.of)

    @property
    def seeds(self) -> str:
        """Of which seeds, for people."""
        return _joined(c.seed for c in self.of)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "artifact": self.id,
            "of": [c.model_dump() for c in self.of],
            "metric": self.metric,
            "dev": self.dev,
            "test": self.test,
            "candidate": self.candidate,
            "summary": self.summary,
            "published": self.published,
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class Measured:
    """Scores of an artifact, None where it has none."""

    metric: str | None
    dev: float | None
    test: float | None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Measured":
        """Those among some fields."""
        return cls(fields.get("metric"), fields.get("dev"), fields.get("test"))

    def filled(self, other: "Measured") -> "Measured":
        """With those of another one where this has none."""
        return Measured(
            self.metric if self.metric is not None else other.metric,
            self.dev if self.dev is not None else other.dev,
            self.test if self.test is not None else other.test,
        )


@dataclass(frozen=True)
class Listing:
    """All artifacts of a home, and which cannot be read."""

    rows: tuple[Row, ...]
    """Oldest first."""
    damaged: tuple[str, ...]


def _joined(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values if v is not None))


def list_artifacts(home: Path, histories: Iterable[History]) -> Listing:
    """What every artifact of a home is."""
    artifacts = ArtifactStore(home)
    manifests, damaged = dict[str, dict[str, Any]](), list[str]()
    refs = {str(ref): ref for ref in artifacts.refs()}
    for name, ref in refs.items():
        # The checksum is enough for a listing; whether a key is that of its content is `verify`'s matter.
        found = _manifest(artifacts.folder(ref) / MANIFEST)
        if found is None and not is_there(artifacts.folder(ref) / MANIFEST):
            continue  # removed since it was listed
        if found is None or f"{ref.stage}/{found['key']}" != name:
            damaged.append(name)
        else:
            manifests[name] = found
    names = _Names(manifests, [run for history in histories for run in history.runs])
    rows = (names.row(refs[name], artifacts.folder(refs[name])) for name in manifests)
    return Listing(tuple(rows), tuple(damaged))


def _manifest(path: Path) -> dict[str, Any] | None:
    """The fields of a manifest, its whole numbers as integers; None if it is damaged.

    As `read_sealed`, three times as fast: what takes its time there is to convert every float, of which a
    manifest has few.
    """
    try:
        fields = json.loads(path.read_bytes(), parse_float=_number)
        checksum = fields.pop(CHECKSUM, None)
        content = json.dumps(
            fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        sound = hashlib.sha256(content.encode()).hexdigest()[:KEY_LENGTH] == checksum
        # Those of earlier versions have none.
        has_all = {"key", "spec", "files"} <= fields.keys() and "inputs" in fields["spec"]
        return fields if has_all and (sound or checksum is None) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _number(text: str) -> float | int:
    """As in canonical JSON (`storage.keys.to_plain`)."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


@dataclass
class _Names:
    """What is known of artifacts beside their own manifests."""

    manifests: Mapping[str, dict[str, Any]]
    runs: Sequence[Run]
    of: dict[str, tuple[CellOf, ...]] = field(default_factory=dict)
    scores: dict[str, RunScore] = field(default_factory=dict)
    """By the artifact that holds them."""
    measured: dict[str, Measured] = field(default_factory=dict)
    """Of an artifact, and of the head that a score is of."""
    points: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._from_runs()
        self._from_reports()
        self._from_summaries()
        self._from_choices()
        self._from_scores()
        self._from_corpora()

    def _name(self, ref: str, *cells: CellOf) -> None:
        if cells and ref in self.manifests:
            self.of.setdefault(ref, cells)

    def _from_runs(self) -> None:
        # The latest first: the words of today.
        for run in sorted(self.runs, key=lambda r: r.time, reverse=True):
            for used in run.begun.artifacts:
                self._name(used.ref, *used.of)
                if used.candidate is not None:
                    self.points.setdefault(used.ref, used.candidate)
            for score in () if run.ended is None else run.ended.results:
                self.scores.setdefault(score.key, score)

    def _from_reports(self) -> None:
        for manifest in self._of_stage("report"):
            found: dict[str, dict[CellOf, None]] = {}
            config = manifest["spec"]["config"]
            # Reports of other versions may have other fields.
            with suppress(LookupError, TypeError, ValueError):
                for cell in config["cells"]:
                    one = CellOf(method=cell["method"], task=cell["task"], seed=cell["seed"])
                    made = (cell["result"], cell["fit"], cell["score"], *cell["candidates"])
                    for ref in filter(None, made):
                        found.setdefault(ref, {})[one] = None
            with suppress(LookupError, TypeError, ValueError):
                for method, task, seed, ref in config["results"]:
                    found.setdefault(ref, {})[CellOf(method=method, task=task, seed=seed)] = None
            for ref, cells in found.items():
                self._name(ref, *cells)

    def _from_summaries(self) -> None:
        for ref, manifest in self.manifests.items():
            summary = manifest.get("summary") or {}
            method = summary.get("method", summary.get("curve", summary.get("pretraining")))
            with suppress(ValueError):
                cell = CellOf(method=method, task=summary.get("task"), seed=summary.get("seed"))
                if cell != CellOf():
                    self._name(ref, cell)
            self.measured[ref] = Measured.of(summary)

    def _from_choices(self) -> None:
        for manifest in self._of_stage(CHOOSE):
            fits = [i for i in manifest["spec"]["inputs"] if i in self.manifests]
            configs = [self.manifests[fit]["spec"]["config"] for fit in fits]
            for fit, point in zip(fits, grid_points(configs), strict=True):
                self.points.setdefault(fit, point)
            chosen = (manifest.get("summary") or {}).get("fit")
            if chosen in self.points:
                self.points[f"{CHOOSE}/{manifest['key']}"] = self.points[chosen]

    def _from_scores(self) -> None:
        """What a score is of has its names, and its numbers."""
        for stage in ("score", CHOOSE):
            for manifest in self._of_stage(stage):
                ref = f"{stage}/{manifest['key']}"
                inputs = [i for i in manifest["spec"]["inputs"] if i.partition("/")[0] in _HEADS]
                for head in inputs[:1] if stage == "score" else inputs:
                    self._name(head, *self.of.get(ref, ()))
                chosen = (manifest.get("summary") or {}).get("fit")
                for head in inputs[:1] if stage == "score" else filter(None, [chosen]):
                    self._measure(head, ref)
                if stage == "score" and inputs and inputs[0] in self.points:
                    self.points[ref] = self.points[inputs[0]]

    def _from_corpora(self) -> None:
        """Whatever reads one corpus is of its task."""
        for ref, manifest in self.manifests.items():
            read = [i for i in manifest["spec"]["inputs"] if i.startswith("corpus/")]
            if len(read) == 1:
                tasks = (cell.task for cell in self.of.get(read[0], ()))
                self._name(ref, *(CellOf(task=task) for task in tasks))

    def _measure(self, head: str, by: str) -> None:
        if head not in self.measured:
            return
        self.measured[head] = self.measured[head].filled(self.measured[by])

    def _of_stage(self, stage: str) -> Iterator[dict[str, Any]]:
        return (m for ref, m in self.manifests.items() if ref.startswith(f"{stage}/"))

    def row(self, ref: ArtifactRef, folder: Path) -> Row:
        """One artifact."""
        manifest, name = self.manifests[str(ref)], str(ref)
        score = self.scores.get(name)
        found = self.measured[name]
        if score is not None:
            found = Measured(score.metric, score.dev, score.test)
        elif found.test is None and _METRICS in manifest["files"] and (folder / _METRICS).is_file():
            # What controls of earlier versions have no summary of.
            with suppress(CorruptDataError, FileNotFoundError, AttributeError):
                found = Measured.of(read_json(folder / _METRICS))
        return Row(
            ref=ref,
            of=self.of.get(name, ()),
            metric=found.metric,
            dev=found.dev,
            test=found.test,
            candidate=self.points.get(name) or self._choice(name, manifest, score),
            summary=manifest.get("summary") or {},
            published=str((manifest.get("provenance") or {}).get("published", "")),
            bytes=sum(f["bytes"] for f in manifest["files"].values()),
        )

    def _choice(self, ref: str, manifest: Mapping[str, Any], score: RunScore | None) -> str | None:
        """What was chosen on dev by a method without a grid of fits: layers, the strength of
        regularisation."""
        if (stage := ref.partition("/")[0]) == "score":
            (ref,) = [i for i in manifest["spec"]["inputs"] if i.startswith("embed/")] or [ref]
            manifest = self.manifests.get(ref, manifest)
        if ref.startswith("embed/"):
            layers = (manifest.get("summary") or {}).get("layers")
            return None if layers is None else f"layers {layers}"
        if stage not in _CHOOSING or score is None or not score.choice:
            return None
        # Counts are told there as well, and were not chosen.
        chosen = (pair for pair in score.choice.items() if not pair[0].startswith("n_"))
        return ", ".join(f"{name} {value}" for name, value in chosen)


def chosen_rows(
    listing: Listing,
    stage: str | None,
    used: Collection[str] | None,
) -> Listing:
    """The rows of one stage, and of those that some runs used; None for all."""
    rows = tuple(
        row
        for row in listing.rows
        if (stage is None or row.ref.stage == stage) and (used is None or row.id in used)
    )
    damaged = tuple(d for d in listing.damaged if used is None or d in used)
    return replace(listing, rows=rows, damaged=damaged)
