"""Copying feature stores, parts of them, and corpora between homes."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

from permafrost.flows.dataset_folder import require_card_place, require_hub_limits, write_card
from permafrost.flows.records.history import histories
from permafrost.flows.records.listing import list_artifacts
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, Manifest
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.array_names import EVERY_ARRAY, patterns_of
from permafrost.storage.features.parts import StorePart, TransferPlan, part_of
from permafrost.storage.features.store import FeatureStore, store_folders
from permafrost.storage.features.transfer import plan_transfer, transfer
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

CORPUS = "corpus"
_TEXTS = "texts.parquet"
Form = Literal["home", "dataset"]
"""A home for this program, or one with a card for the hub."""
_DATA = (".parquet", ".json")
"""Endings of the files of a corpus; no other is copied."""


@dataclass(frozen=True)
class Wanted:
    """What of a home is to be copied, as a person names it."""

    store: str | None = None
    """The beginning of a store's id; None for the only one."""
    arrays: Sequence[str] = (EVERY_ARRAY,)
    """Names of arrays, or patterns of them: `hidden/3`, `hidden/*`."""
    corpus: str | None = None
    """A task's name, or `corpus/<key>`: only segments that hold its texts, whole, and the corpus itself."""


def wanted_of(store: object, arrays: object, corpus: object, form: object = "home") -> Wanted:
    """What is wanted, from what a person gives.

    Raises:
        InputError: an argument is of the wrong type, `arrays` is empty, or there is no such form.
    """
    for name, value in (("store", store), ("corpus", corpus)):
        if not isinstance(value, str | None):
            raise InputError(
                f"{name} is {quoted(value)}, of type {type(value).__name__}; give a name, or None"
            )
    if not (patterns := patterns_of(arrays)):
        raise InputError(
            f"arrays is {quoted(arrays)}, which names none to copy; leave it out for all of them"
        )
    if form not in get_args(Form):
        raise InputError(f"form is {quoted(form)}; there are {', '.join(get_args(Form))}")
    return Wanted(cast("str | None", store), patterns, cast("str | None", corpus))


@dataclass(frozen=True)
class Copied:
    """What was copied from one home to another, or would be."""

    source: str
    target: str
    store_id: str
    plan: TransferPlan
    corpus: ArtifactRef | None = None
    """The corpus that was named; its texts, examples and labels are copied with the features."""

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
            "corpus": None if self.corpus is None else str(self.corpus),
        }


def copy_between(
    source: Path,
    target: Path,
    wanted: Wanted,
    progress: Callable[[str], Progress],
    busy: Literal["end", "wait"] = "end",
    form: Form = "home",
) -> Copied:
    """Copy what the home `target` lacks of what is wanted of the home `source`.

    As a `dataset`, the target gets a card for the hub, too. Raises as `transfer`, `copy_corpus` and
    `chosen_part`.
    """
    part, corpus = chosen_part(source, target, wanted, form)
    label = f"copy features/{part.source.store_id[:12]}"
    plan = transfer(part, target, progress(label), busy)
    if corpus is not None:
        copy_corpus(source, target, corpus)
    if form == "dataset":
        write_card(target)
    return _copied(source, target, plan, corpus)


def would_copy(source: Path, target: Path, wanted: Wanted, form: Form = "home") -> Copied:
    """What `copy_between` would copy; leaves nothing behind. Raises what it does before it starts."""
    part, corpus = chosen_part(source, target, wanted, form)
    return _copied(source, target, plan_transfer(part, target), corpus)


def _copied(source: Path, target: Path, plan: TransferPlan, corpus: ArtifactRef | None) -> Copied:
    return Copied(
        public_name(source.absolute()),
        public_name(target.absolute()),
        plan.part.source.store_id,
        plan,
        corpus,
    )


def chosen_part(
    source: Path, target: Path, wanted: Wanted, form: Form = "home"
) -> tuple[StorePart, ArtifactRef | None]:
    """The part of a store that is wanted, and the corpus that was named.

    Raises:
        InputError: both homes are the same, or a name fits several; or the corpus was made by a version that
            names corpora in another way; or the part is too large for the hub, or would replace a README
            there.
        NotFoundError: a name fits nothing.
        CorruptDataError: the store cannot be opened, or is damaged.
    """
    if source.resolve() == target.resolve():
        raise InputError(
            f"both homes are {public_name(source.absolute())}; name another one to copy from or to"
        )
    store, artifacts = chosen_store(source, wanted.store), ArtifactStore(source)
    corpus = None if wanted.corpus is None else _corpus(source, artifacts, wanted.corpus)
    if corpus is not None and not ArtifactStore(target).is_done(corpus):
        _require_copyable(artifacts, corpus)
    digests = None if corpus is None else _digests(artifacts.open(corpus) / _TEXTS)
    part = part_of(store, wanted.arrays, digests)
    if form == "dataset":
        require_hub_limits(part, target)
        require_card_place(target)
    return part, corpus


def copy_corpus(source: Path, target: Path, ref: ArtifactRef) -> None:
    """Copy a corpus, unless it is there: tables and JSON, each file against its checksum before and after.

    Raises:
        CorruptDataError: a file is not what the manifest says; nothing was published.
        InputError: it was made by a version that names corpora in another way.
    """
    there, here = ArtifactStore(source), ArtifactStore(target)
    if _is_whole(here, ref):
        return
    folder = there.open(ref)
    manifest = _require_copyable(there, ref)
    if here.is_done(ref):
        here.remove(ref)  # damaged
    with here.publishing(manifest.spec, manifest.provenance) as draft:
        draft.summary = manifest.summary
        for name, record in manifest.files.items():
            if not name.endswith(_DATA):
                continue
            path = draft.folder / name
            shutil.copyfile(folder / name, path)
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != record.sha256:
                raise CorruptDataError(
                    f"{name} of {ref} did not arrive as its manifest says; nothing of the corpus was kept. "
                    "Run the same command again"
                )


def _is_whole(artifacts: ArtifactStore, ref: ArtifactRef) -> bool:
    return artifacts.is_done(ref) and not artifacts.problems(ref)


def _require_copyable(artifacts: ArtifactStore, ref: ArtifactRef) -> Manifest:
    """The manifest of a corpus that has its files beside each other, and the name that it would get."""
    manifest = artifacts.manifest(ref)
    if odd := [name for name in manifest.files if PurePosixPath(name).name != name]:
        raise CorruptDataError(
            f"{ref} names the file {quoted(odd[0])}, which no corpus has; it was not copied"
        )
    if manifest.spec.ref != ref:
        raise InputError(
            f"{ref} was made by a version of permafrost that names corpora in another way; nothing of it was "
            "copied. Run its experiment again, which makes it anew, or leave --corpus out, which copies the "
            "features of all texts"
        )
    return manifest


def chosen_store(home: Path, name: str | None) -> FeatureStore:
    """The only feature store of a home, or that whose id begins so.

    Raises:
        InputError: several fit, or the name is empty, which every id begins with.
        NotFoundError: none does.
        CorruptDataError: it cannot be opened.
    """
    every = store_folders(home)
    beginning = None if name is None else name.strip().removeprefix("features/")
    if beginning == "":
        raise InputError(
            "the ID of the store is empty; give one, or its beginning, from those that 'permafrost ls' "
            "lists, or none at all where there is only one store"
        )
    fitting = [p for p in every if p.name.startswith(beginning or "")]
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


def _digests(path: Path) -> list[str]:
    """Digests of the texts of a corpus."""
    # Imported here: Arrow takes a moment, and few copies are of a corpus.
    import pyarrow as pa
    import pyarrow.parquet as pq

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
