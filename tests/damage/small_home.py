"""A home of every kind of file that there is, what reads of it must give, and how a user puts it right."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from permafrost.flows.damage import store_problems
from permafrost.flows.disk.garbage import collect
from permafrost.flows.records.runs import RunRecord, run_files, run_problems, write_run
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import PermafrostError
from permafrost.storage.features.projections import (
    has_projection,
    read_projection,
    write_projection,
)
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.store import FeatureStore, store_folder, store_folders
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import IDENTITY, SmallStore, new_store

ARRAYS = ("hidden/1", "hidden/2", "pooled/hidden_mean/1")
OTHER = IDENTITY.model_copy(update={"max_length": 16})
WEIGHT = np.arange(32, dtype=np.float32).reshape(4, 8)
BIAS = np.arange(8, dtype=np.float32)
CORPUS = ArtifactSpec(stage="corpus", config={"file": "x.csv"})
FIT = ArtifactSpec(stage="fit", config={"lr": 0.5}, inputs=(str(CORPUS.ref),))
UNUSED = ArtifactSpec(stage="fit", config={"lr": 0.25})
SPECS = (CORPUS, FIT, UNUSED)


@dataclass(frozen=True)
class SmallHome:
    """Two stores, three artifacts (one that no run uses), and the runs of two experiments."""

    root: Path
    stores: tuple[SmallStore, ...]
    """The rows that were put into them; each store itself is opened afresh for every check."""

    def copied(self, root: Path) -> "SmallHome":
        """The same home elsewhere."""
        shutil.copytree(self.root, root, symlinks=True)
        return SmallHome(root, self.stores)

    def folder(self, small: SmallStore) -> Path:
        """Where a store lies in this home."""
        return store_folder(self.root, small.store.store_id)


def publish(home: Path, spec: ArtifactSpec) -> None:
    """Make an artifact, as running its experiment again does."""
    with ArtifactStore(home).publishing(spec, {"device": "cpu"}) as draft:
        (draft.folder / "numbers.bin").write_bytes(spec.stage.encode() * 8)
        draft.summary["dev"] = 0.75


def record_runs(home: Path) -> None:
    """Write both records, as running both experiments again does."""
    ids = (IDENTITY.store_id, OTHER.store_id)
    for name, spec, store in zip(("first", "second"), (FIT, CORPUS), ids, strict=True):
        refs = (str(spec.ref),)
        record = RunRecord(experiment=name, finished="2026", artifacts=refs, stores=(store,))
        write_run(home, record)


def build(root: Path) -> SmallHome:
    """Make the home."""
    stores: list[SmallStore] = []
    for identity, n_texts, arrays in ((IDENTITY, 9, ARRAYS), (OTHER, 2, ("hidden/1",))):
        small = new_store(root, identity=identity)
        lengths = np.random.default_rng(7).integers(4, 16, n_texts).tolist()
        small.add([f"text {i}" for i in range(n_texts)], lengths, arrays)
        stores.append(small)
    for block in (1, 2):
        write_projection(stores[0].store, block, WEIGHT * block, BIAS)
    for spec in SPECS:
        publish(root, spec)
    record_runs(root)
    return SmallHome(root, tuple(stores))


def check_reads(home: SmallHome) -> int:
    """Read everything that can be read: a wrong number fails; an error of ours is no wrong number.

    Returns:
        How many reads gave an error.
    """
    n_errors = 0
    for small in home.stores:
        for array in small.rows:
            n_errors += _fails(lambda s=small, a=array: _check_array(home, s, a))
    for block in (1, 2):
        n_errors += _fails(lambda b=block: _check_projection(home, b))
    for spec in SPECS:
        n_errors += _fails(lambda s=spec: _check_artifact(home, s))
    return n_errors


def _fails(check: object) -> bool:
    assert callable(check)
    try:
        check()
    except PermafrostError:
        return True
    return False


def _check_array(home: SmallHome, small: SmallStore, array: str) -> None:
    """By text and by segment."""
    store = FeatureStore.open(home.folder(small))
    tables = [store.segment(s).table for s in store.segments()]
    assert sum(t.num_rows for t in tables) == len(small.texts), (
        "a reader by segment gets fewer texts"
    )
    reader = open_reader(store, array, small.digests, budget_bytes=1 << 20, tokens="all")
    for indices, rows in reader.in_order(4):
        for i, found in zip(indices.tolist(), rows, strict=True):
            expected = small.expected(array, small.texts[i])
            assert np.array_equal(found, expected.astype(found.dtype)), f"{array}: wrong numbers"


def _check_projection(home: SmallHome, block: int) -> None:
    weight, bias = read_projection(FeatureStore.open(home.folder(home.stores[0])), block)
    assert np.array_equal(weight, WEIGHT * block)
    assert bias is not None
    assert np.array_equal(bias, BIAS)


def _check_artifact(home: SmallHome, spec: ArtifactSpec) -> None:
    artifacts = ArtifactStore(home.root)
    folder, manifest = artifacts.open(spec.ref), artifacts.manifest(spec.ref)
    assert manifest.spec == spec
    assert manifest.summary == {"dev": 0.75}
    assert (folder / "numbers.bin").read_bytes() == spec.stage.encode() * 8


def problems(home: SmallHome) -> list[str]:
    """What `permafrost verify` prints."""
    found = [p for f in store_folders(home.root) for p in store_problems(f, SilentProgress())]
    artifacts = ArtifactStore(home.root)
    found += [p for ref in artifacts.refs() for p in artifacts.problems(ref)]
    return found + [p for path in run_files(home.root) for p in run_problems(home.root, path)]


def garbage(home: SmallHome) -> set[Path]:
    """What `permafrost gc` would remove."""
    return {p.relative_to(home.root) for p in collect(home.root, []).folders}


def put_right(home: SmallHome) -> None:
    """Repair every store and artifact, and run both experiments again: they extract what is missing."""
    for small in home.stores:
        root = home.folder(small)
        mended = mend(root, SilentProgress())
        again = SmallStore(mended.store, list(small.texts), small.rows)
        with writing(mended.store) as writer:
            segments = mended.store.segments()
            for number, arrays in mended.store.missing_cells(segments, [*small.rows]).items():
                again.fill(writer, number, [*dict.fromkeys(arrays)], np.random.default_rng(0))
        lacking = [b for b in (1, 2) if not has_projection(mended.store, b)]
        for block in {*mended.projections, *(lacking if small is home.stores[0] else ())}:
            write_projection(mended.store, block, WEIGHT * block, BIAS)
    artifacts = ArtifactStore(home.root)
    for ref in artifacts.refs():
        if artifacts.problems(ref):
            artifacts.remove(ref)
    for spec in SPECS:
        if not artifacts.is_done(spec.ref):
            publish(home.root, spec)
    record_runs(home.root)
