"""Small homes that a campaign breaks: made by the commands, of experiments that take a second."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import permafrost
from permafrost.flows.damage import store_problems
from permafrost.flows.home import open_existing_home
from permafrost.flows.records.history import histories, history_problems, read_history
from permafrost.flows.records.pins import pin_problems
from permafrost.flows.records.runs import run_files, run_problems
from permafrost.stages.encoder.export import export_head
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.store import DERIVED, FeatureStore, all_stores, store_folders
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.campaign.children import answer_of, forked, preload
from tests.campaign.commands import command, require_done
from tests.stages.extraction.tiny_models import save_model

TELLING = ("report", "extract")
"""Stages whose files tell seconds, or what the last run had to compute."""


def _experiment(name: str, backbone: Path, **fields: Any) -> dict[str, Any]:
    """Texts are batches of their own, so that numbers depend on no other text, and a few texts are a
    segment."""
    dilution = {"kind": "dilution", "n_words": 20, "gap": 1, "n_train": 12, "n_dev": 6, "n_test": 6}
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    head = {"kind": "head", "layer": "hidden/1", "optim": optim}
    extract = {"device": "cpu", "batch_tokens": 1, "block_texts": 12}
    return {
        "name": name,
        "backbone": {"source": str(backbone)},
        "capture": "hidden=1@tokens",
        "tasks": {"a": {**dilution, "ratio": 0.2, "seed": 1}},
        "methods": {
            "mean": {**head, "head": {"kind": "mean"}},
            "scorer": {**head, "head": {"kind": "scorer", "hidden": 4}},
            "length": {"kind": "length"},
        },
        "seeds": [0],
        "report": {"title": name},
        "runtime": {"workers": 1, "extract": extract},
        **fields,
    }


@dataclass(frozen=True)
class Homes:
    """A folder with the backbone, the experiments `first`, `wide` (more texts, arrays and methods in the same
    store) and `other` (a store of its own), and the homes that they leave."""

    folder: Path

    def experiment(self, name: str) -> Path:
        """The file of an experiment."""
        return self.folder / f"{name}.yaml"

    @property
    def first(self) -> Path:
        """The home in which `first` has run."""
        return self.folder / "first"

    @property
    def every(self) -> Path:
        """The home in which all three have run, and `first` is pinned."""
        return self.folder / "every"

    @property
    def kept(self) -> Path:
        """What `gc` leaves of `garbage`."""
        return self.folder / "kept"

    @property
    def garbage(self) -> Path:
        """As `every`, without the records of `wide` and `other`."""
        return self.folder / "garbage"

    @property
    def exported(self) -> Path:
        """The head of `head` as a folder."""
        return self.folder / "exported"

    @property
    def head(self) -> str:
        """`fit/<key>` of a trained head of `first`."""
        manifests = sorted(self.first.glob("artifacts/fit/*/artifact.json"))
        return f"fit/{manifests[-1].parent.name}"

    @property
    def store(self) -> str:
        """Id of the store of `first` and `wide`."""
        (folder,) = (self.first / "features").iterdir()
        return folder.name

    def refs(self, name: str) -> list[str]:
        """Artifacts of an experiment, `<stage>/<key>`."""
        return _refs(self.every, name)


def make_homes(folder: Path) -> Homes:
    """Make them, if they are not there; twice what `first` leaves, to see that it is the same."""
    homes, model = Homes(folder), folder / "model"
    os.environ["PERMAFROST_CACHE"] = str(folder / "cache")
    made, code = folder / "made", _code()
    if made.exists() and made.read_text() == code:
        preload(lambda: _warm_up(homes))
        return homes
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answer_of(lambda: str(save_model("bert", model)))
    first = _experiment("first", model)
    task = {**first["tasks"]["a"], "ratio": 0.5, "seed": 2}
    head = {**first["methods"]["mean"], "layer": "hidden/2"}
    wide = _experiment(
        "wide",
        model,
        capture="hidden=1-2@tokens,values=2,hidden=2@mean",
        tasks={**first["tasks"], "b": task},
        methods={**first["methods"], "second": head},
    )
    other = _experiment("other", model) | {"backbone": {"source": str(model), "max_length": 12}}
    for name, fields in (("first", first), ("wide", wide), ("other", other)):
        homes.experiment(name).write_text(yaml.safe_dump(fields, sort_keys=False))

    preload(lambda: _warm_up(homes))

    def run(name: str, home: Path) -> None:
        require_done(forked(command("run", homes.experiment(name), "--home", home)))

    run("first", homes.first)
    run("first", folder / "again")
    assert differences_in_child(folder / "again", homes.first) == []
    for name in ("first", "wide", "other"):
        run(name, homes.every)
    require_done(forked(command("pin", "first@1", "--home", homes.every)))
    copied(homes.every, homes.garbage)
    for name in ("wide", "other"):
        _forget(homes.garbage, name)
    copied(homes.garbage, homes.kept)
    require_done(forked(command("gc", "--home", homes.kept)))
    require_done(forked(export(homes, homes.first, homes.exported)))
    made.write_text(code)
    return homes


def _code() -> str:
    """Digest of our code, as keys depend on it."""
    root = Path(permafrost.__file__).parents[1]
    files = sorted(
        p for room in ("flows", "stages", "storage") for p in (root / room).rglob("*.py")
    )
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


@cache
def _refs(home: Path, name: str) -> list[str]:
    return answer_of(lambda: [*read_history(home, name).runs[-1].refs])


def _warm_up(homes: Homes) -> None:
    """Everything that a child may import is imported by this."""
    home, out = homes.folder / "warm", homes.folder / "warm-export"
    for folder in (home, out):
        shutil.rmtree(folder, ignore_errors=True)
    result = permafrost.run(homes.experiment("wide"), home=home, engine="serial")
    assert result.computed
    export_head(home, str(ArtifactStore(home).refs("fit")[-1]), out, "auto", None, "cpu", "vectors")
    permafrost.predict(["snow melts"], head=str(ArtifactStore(home).refs("fit")[-1]), home=home)


def copied(home: Path, target: Path) -> Path:
    """A home elsewhere; shards are links, as no program writes into one that is committed."""

    def copy(source: str, to: str) -> None:
        (os.link if "/c/" in source else shutil.copy2)(source, to)

    shutil.copytree(home, target, copy_function=copy)
    return target


def export(homes: Homes, home: Path | str, out: Path) -> Any:
    """The work of exporting the head, in the form that our own code reads."""
    flags = ("--form", "module", "--device", "cpu", "--home", home)
    return command("export", homes.head, "-o", out, *flags)


def _forget(home: Path, experiment: str) -> None:
    """Remove what keeps an experiment from being garbage."""
    (home / "runs" / f"{experiment}.json").unlink()
    for path in (home / "runs" / "history" / experiment).iterdir():
        path.unlink()


def problems_of(home: str) -> list[str]:
    """What `permafrost verify` finds; for a child."""
    root = open_existing_home(home, SilentProgress())
    found = [p for f in store_folders(root) for p in store_problems(f, SilentProgress())]
    artifacts = ArtifactStore(root)
    found += [p for ref in artifacts.refs() for p in artifacts.problems(ref)]
    found += [p for path in run_files(root) for p in run_problems(root, path)]
    found += [p for _, p in history_problems(histories(root).values())]
    return found + [p for _, p in pin_problems(root)]


def differences(home: str, reference: Path, tolerance: float = 0.0) -> list[str]:
    """What the stores and artifacts of a home have otherwise than the home `reference` has them; what only
    one of them has is no difference, but for the arrays and texts of a store. For a child."""
    root, found = open_existing_home(home, SilentProgress()), list[str]()
    expected = {s.store_id: s for s in all_stores(reference)}
    for store in all_stores(root):
        found += _in_store(store, expected[store.store_id], tolerance)
    right = ArtifactStore(reference)
    for manifest in ArtifactStore(root).all():
        if manifest.spec.stage in TELLING or not right.is_done(manifest.ref):
            continue
        if manifest.files != right.manifest(manifest.ref).files:
            found.append(f"{manifest.ref} has other files")
    return found


def differences_in_child(home: str | Path, reference: Path, tolerance: float = 0.0) -> list[str]:
    """See `differences`."""
    return answer_of(lambda: differences(str(home), reference, tolerance))


def _in_store(store: FeatureStore, reference: FeatureStore, tolerance: float) -> list[str]:
    every = _digests(store)
    if sorted(every) != sorted(set(every)):
        return [f"the store {store.store_id} holds a text twice"]
    if unknown := set(every) - set(_digests(reference)):
        return [f"{len(unknown)} texts of {store.store_id} are unknown"]
    found: list[str] = []
    for array in store.arrays():
        if array in DERIVED:
            continue
        digests = sorted(set(_digests(store, array)) & set(_digests(reference, array)))
        mine, right = (_rows(s, array, digests) for s in (store, reference))
        if not all(
            np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
            if tolerance
            else np.array_equal(a, b)
            for a, b in zip(mine, right, strict=True)
        ):
            found.append(f"{array} of {store.store_id} has other numbers")
    return found


def _digests(store: FeatureStore, array: str | None = None) -> list[str]:
    """Of all texts, or of those that have rows of an array."""
    return [
        digest
        for s in store.segments()
        if array is None or array in store.committed(s)
        for digest in store.segment(s).table.column("digest").to_pylist()
    ]


def _rows(store: FeatureStore, array: str, digests: list[str]) -> list[Any]:
    reader = open_reader(store, array, digests, budget_bytes=1 << 30, tokens="all")
    rows: dict[int, Any] = {}
    for texts, found in reader.in_order(1000):
        rows |= {text: found[i].copy() for i, text in enumerate(texts.tolist())}
    return [rows[i] for i in range(len(digests))]
