"""Copying feature stores, and parts of them, between homes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from permafrost.flows.history import histories
from permafrost.flows.listing import list_artifacts
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.parts import EVERY_ARRAY, StorePart, TransferPlan, part_of
from permafrost.storage.features.store import FeatureStore, store_folders
from permafrost.storage.features.transfer import plan_transfer, transfer
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

CORPUS = "corpus"
_TEXTS = "texts.parquet"


@dataclass(frozen=True)
class Wanted:
    """What of a home is to be copied, as a person names it."""

    store: str | None = None
    """The beginning of a store's id; None for the only one."""
    arrays: Sequence[str] = (EVERY_ARRAY,)
    """Names of arrays, or patterns of them: `hidden/3`, `hidden/*`."""
    corpus: str | None = None
    """A task's name, or `corpus/<key>`: only segments that hold its texts, whole."""


@dataclass(frozen=True)
class Copied:
    """What was copied from one home to another, or would be."""

    source: str
    target: str
    store_id: str
    plan: TransferPlan

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        plan = self.plan
        return {
            "from": self.source,
            "to": self.target,
            "store_id": self.store_id,
            "arrays": [
                {
                    "array": array,
                    "n_segments": sum(array in s.cells for s in plan.segments),
                    "bytes": n_bytes,
                }
                for array, n_bytes in plan.bytes_of_arrays().items()
            ],
            "n_segments": len(plan.segments),
            "n_texts": plan.n_texts,
            "n_texts_elsewhere": plan.n_elsewhere,
            "n_texts_unknown": plan.part.n_unknown,
            "n_cells": plan.n_cells,
            "n_cells_present": plan.n_present,
            "n_cells_lacking": plan.n_lacking,
            "n_cells_damaged": sum(len(s.damaged) for s in plan.segments),
            "bytes": plan.n_bytes,
        }


def copy_between(
    source: Path,
    target: Path,
    wanted: Wanted,
    progress: Callable[[str], Progress],
    busy: Literal["end", "wait"] = "end",
) -> Copied:
    """Copy what the home `target` lacks of what is wanted of the home `source`. Raises as `transfer`, and as
    `chosen_part`."""
    part = chosen_part(source, target, wanted)
    label = f"copy features/{part.source.store_id[:12]}"
    return _copied(source, target, transfer(part, target, progress(label), busy))


def would_copy(source: Path, target: Path, wanted: Wanted) -> Copied:
    """What `copy_between` would copy; writes nothing."""
    return _copied(source, target, plan_transfer(chosen_part(source, target, wanted), target))


def _copied(source: Path, target: Path, plan: TransferPlan) -> Copied:
    return Copied(
        public_name(source.absolute()),
        public_name(target.absolute()),
        plan.part.source.store_id,
        plan,
    )


def chosen_part(source: Path, target: Path, wanted: Wanted) -> StorePart:
    """The part of a store that is wanted.

    Raises:
        InputError: both homes are the same, or a name fits several.
        NotFoundError: a name fits nothing.
        CorruptDataError: the store cannot be opened, or is damaged.
    """
    if source.resolve() == target.resolve():
        raise InputError(
            f"both homes are {public_name(source.absolute())}; name another one to copy from or to"
        )
    store = chosen_store(source, wanted.store)
    digests = None if wanted.corpus is None else _digests(source, wanted.corpus)
    return part_of(store, wanted.arrays, digests)


def chosen_store(home: Path, name: str | None) -> FeatureStore:
    """The only feature store of a home, or that whose id begins so.

    Raises:
        InputError: several fit.
        NotFoundError: none does.
        CorruptDataError: it cannot be opened.
    """
    every = store_folders(home)
    fitting = [p for p in every if p.name.startswith((name or "").removeprefix("features/"))]
    if len(fitting) == 1:
        return FeatureStore.open(fitting[0])
    ids, where = ", ".join(p.name[:12] for p in fitting or every) or "none", public_name(home)
    if fitting:
        raise InputError(f"{len(fitting)} feature stores of {where} fit; name one of {ids}")
    raise NotFoundError(
        f"no feature store of {where} has an id that begins with {quoted(name)}; there are {ids}"
        if name
        else f"there is no feature store in {where}"
    )


def _digests(home: Path, name: str) -> list[str]:
    """Digests of the texts of a corpus."""
    # Imported here: Arrow takes a moment, and few copies are of a corpus.
    import pyarrow as pa
    import pyarrow.parquet as pq

    artifacts = ArtifactStore(home)
    path = artifacts.open(_corpus(home, artifacts, name)) / _TEXTS
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            column = file.read(["digest"], use_threads=False).column("digest")
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise CorruptDataError(f"{path} has no digests of texts ({error})") from error
    return [digest for digest in column.to_pylist() if isinstance(digest, str)]


def _corpus(home: Path, artifacts: ArtifactStore, name: str) -> ArtifactRef:
    if name.startswith(f"{CORPUS}/"):
        return artifacts.find(name)
    rows = [
        r
        for r in list_artifacts(home, histories(home).values()).rows
        if r.ref.stage == CORPUS and any(cell.task == name for cell in r.of)
    ]
    if len(rows) == 1:
        return rows[0].ref
    if rows:
        refs = ", ".join(f"{r.ref.stage}/{r.ref.key[:12]}" for r in rows)
        raise InputError(f"{len(rows)} corpora are of a task {quoted(name)}; give one of {refs}")
    raise NotFoundError(
        f"no corpus of a task {quoted(name)} is in {public_name(home)}; 'permafrost ls --stage corpus' lists "
        "them, and corpus/<key> names one"
    )
