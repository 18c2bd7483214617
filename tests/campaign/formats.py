"""Fuzzing of every file format that is read: bytes changed at random, and other values in a file that is well
formed, under its right checksum if it has one. What is read is what was written, or an error says that it is
not."""

import random
import shutil
from pathlib import Path
from typing import Any

import permafrost
from permafrost.flows.records.history import half_path, read_history
from permafrost.flows.records.pins import pin_path, pin_problems, pinned
from permafrost.flows.records.runs import read_run, run_path
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import write_durably
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.due import Due, due_path, note_due, read_due
from permafrost.storage.features.receipts import read_receipt, receipt_path
from permafrost.storage.features.record import record_path
from permafrost.storage.features.segments import segment_path
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.sealed import sealed_bytes
from tests.campaign.children import answer_of
from tests.campaign.formats_of_caches import formats_of_caches
from tests.campaign.formats_of_people import formats_of_people
from tests.campaign.fuzzing import Format, json_values, mutated, sealed_values, try_one
from tests.campaign.homes import Homes
from tests.damage.small_home import FIT, SmallHome, build, check_reads, problems
from tests.flows.run_records import begun


def formats(exported: Path, folder: Path) -> dict[str, Format]:
    """One file of each format, in a home of their own and in a copy of a head that was exported."""
    home = build(folder / "home")
    root, (store, _) = home.root, (home.folder(s) for s in home.stores)
    artifacts = ArtifactStore(root)
    begun(root, "first", [str(FIT.ref)], [store.name])
    write_durably(pin_path(root, "first@1"), sealed_bytes({"run": "first@1", "pinned": "2026"}))
    note_due(FeatureStore.open(store), Due(cells={0: ("hidden/1",)}, projections=(1,)))
    zarr = store / "features.zarr"
    return {
        "store.json": Format(
            record_path(store), lambda: FeatureStore.open(store).record, sealed_values
        ),
        "segment": Format(
            segment_path(store, 1), lambda: FeatureStore.open(store).segment(1).table.to_pylist()
        ),
        "receipt": Format(
            receipt_path(store, 1, "hidden/1"),
            lambda: read_receipt(store, 1, "hidden/1"),
            sealed_values,
        ),
        "repair.json": Format(
            due_path(store), lambda: read_due(FeatureStore.open(store)), sealed_values
        ),
        "array's zarr.json": Format(zarr / "hidden/1/zarr.json", lambda: _sound(home), json_values),
        "group's zarr.json": Format(zarr / "zarr.json", lambda: _sound(home), json_values),
        "shard": Format(zarr / "hidden/1/c/1/0", lambda: _sound(home)),
        "artifact.json": Format(
            artifacts.folder(FIT.ref) / "artifact.json",
            lambda: artifacts.manifest(FIT.ref),
            sealed_values,
        ),
        "record of a run": Format(
            run_path(root, "second"), lambda: read_run(run_path(root, "second")), sealed_values
        ),
        "history": Format(
            half_path(root, "first", 1, "begun"), lambda: _history(root), sealed_values
        ),
        "pin": Format(pin_path(root, "first@1"), lambda: [pinned(root), len(pin_problems(root))]),
        **_of_an_export(Path(shutil.copytree(exported, folder / "exported"))),
        **formats_of_people(folder / "people"),
        **formats_of_caches(store, home.stores[0], folder / "caches"),
    }


def _of_an_export(folder: Path) -> dict[str, Format]:
    """What is read of an exported head: all but what is for people and for sentence-transformers."""

    def vectors() -> object:
        return permafrost.load_exported(folder).encode(["snow melts", "the lake"]).tolist()

    names = ("permafrost.json", "head/head.json", "head/head.safetensors")
    backbone = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    read = (*names, *(f"backbone/{name}" for name in backbone))
    return {f"export's {name}": Format(folder / name, vectors, slow=True) for name in read}


def _sound(home: SmallHome) -> str:
    """Wrong numbers fail in `check_reads`; else what `verify` says of a store that is not as it was."""
    n_errors, found = check_reads(home), problems(home)
    if found:
        raise CorruptDataError(found[0])
    assert not n_errors, "readers find damage that verify does not"
    return "sound"


def _history(root: Path) -> object:
    found = read_history(root, "first")
    if found.problems:
        raise CorruptDataError(found.problems[0][1])
    return found.runs


def trial(homes: Homes, folder: Path, rng: random.Random, n: int) -> dict[str, Any]:
    """`n` contents for every format, fewer for slow ones. Raises as `try_one`."""
    folder.mkdir(parents=True)
    try:
        return answer_of(lambda: _contents(formats(homes.exported, folder), rng, n))
    finally:
        shutil.rmtree(folder)


def _contents(found: dict[str, Format], rng: random.Random, n: int) -> dict[str, Any]:
    counts = {"contents": 0, "refused": 0}
    for name, form in found.items():
        right, content = form.read(), form.path.read_bytes()
        for _ in range(-(-n // 10) if form.slow else n):
            change = form.values if form.values is not None and rng.random() < 0.5 else mutated
            other = change(content, rng)
            try:
                refused = try_one(form, right, other, well_formed=change is not mutated)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            counts["contents"] += 1
            counts["refused"] += refused
    return {"counts": counts}
