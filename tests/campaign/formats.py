"""Fuzzing of every file format that is read: bytes changed at random, and JSON with other values under a
right checksum. What is read is what was written, or an error of ours says that it is not."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import TypeAdapter

import permafrost
from permafrost.flows.experiment import load_experiment
from permafrost.flows.history import half_path, read_history
from permafrost.flows.pins import pin_path, pin_problems, pinned
from permafrost.flows.runs import read_run, run_path
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import write_durably
from permafrost.storage.errors import CorruptDataError, PermafrostError
from permafrost.storage.features.due import Due, due_path, note_due, read_due
from permafrost.storage.features.receipts import read_receipt, receipt_path
from permafrost.storage.features.record import record_path
from permafrost.storage.features.segments import read_segment, segment_path
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.sealed import sealed_bytes
from tests.campaign.children import answer_of
from tests.campaign.homes import Homes
from tests.damage.small_home import FIT, SmallHome, build, check_reads, problems
from tests.flows.run_records import begun

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 1e308, "", "x", "\u0000", "../..", "a" * 300, [], [[]], {}, {"x": 1},
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A file of some format."""

    path: Path
    read: Callable[[], object]
    """What is in it, to be compared; raises errors of ours."""
    sealed: bool = False
    """Whether it is JSON with a checksum of its own."""
    open: bool = False
    """Whether people write it: other content is read as such."""
    slow: bool = False
    """Whether reading takes a tenth of a second: a tenth of the contents is tried."""


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
        "store.json": Format(record_path(store), lambda: FeatureStore.open(store).record, True),
        "segment": Format(segment_path(store, 1), lambda: read_segment(store, 1).table.to_pylist()),
        "receipt": Format(
            receipt_path(store, 1, "hidden/1"), lambda: read_receipt(store, 1, "hidden/1"), True
        ),
        "repair.json": Format(due_path(store), lambda: read_due(FeatureStore.open(store)), True),
        "array's zarr.json": Format(zarr / "hidden/1/zarr.json", lambda: _sound(home)),
        "group's zarr.json": Format(zarr / "zarr.json", lambda: _sound(home)),
        "shard": Format(zarr / "hidden/1/c/1/0", lambda: _sound(home)),
        "artifact.json": Format(
            artifacts.folder(FIT.ref) / "artifact.json", lambda: artifacts.manifest(FIT.ref), True
        ),
        "record of a run": Format(
            run_path(root, "second"), lambda: read_run(run_path(root, "second")), True
        ),
        "history": Format(half_path(root, "first", 1, "begun"), lambda: _history(root), True),
        "pin": Format(pin_path(root, "first@1"), lambda: [pinned(root), len(pin_problems(root))]),
        **_of_an_export(Path(shutil.copytree(exported, folder / "exported"))),
        **_of_people(folder),
    }


def _of_an_export(folder: Path) -> dict[str, Format]:
    """What is read of an exported head: all but what is for people and for sentence-transformers."""

    def vectors() -> object:
        return permafrost.load_exported(folder).encode(["snow melts", "the lake"]).tolist()

    names = ("permafrost.json", "head/head.json", "head/head.safetensors")
    backbone = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    read = (*names, *(f"backbone/{name}" for name in backbone))
    return {f"export's {name}": Format(folder / name, vectors, slow=True) for name in read}


def _of_people(folder: Path) -> dict[str, Format]:
    """Experiments and tables, which people write."""
    rows = [{"text": f"snow {i}", "label": i % 2} for i in range(6)]
    found: dict[str, Format] = {}
    experiment = folder / "experiment.yaml"
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    experiment.write_text(
        yaml.safe_dump(
            {
                "name": "mine",
                "backbone": {"source": "nowhere"},
                "capture": "hidden=1-2@tokens,values=2",
                "tasks": {"a": {"kind": "dilution", "n_words": 20, "ratio": 0.2, "seed": 1}},
                "methods": {
                    "mean": {
                        "kind": "head",
                        "head": {"kind": "mean"},
                        "layer": "hidden/1",
                        "optim": optim,
                    },
                    "length": {"kind": "length"},
                },
                "seeds": [0, 1],
            }
        )
    )
    found["experiment YAML"] = Format(
        experiment, lambda: load_experiment(experiment, []).name, open=True
    )
    contents = {
        "csv": "text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows),
        "tsv": "text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in rows),
        "jsonl": "".join(json.dumps(r) + "\n" for r in rows),
        "json": json.dumps(rows),
    }
    for suffix, content in contents.items():
        path = folder / f"table.{suffix}"
        path.write_text(content)
        found[f"{suffix} table"] = Format(path, lambda path=path: _corpus(path), open=True)
    parquet = folder / "table.parquet"
    pq.write_table(
        pa.table({"text": [r["text"] for r in rows], "label": [r["label"] for r in rows]}), parquet
    )
    found["parquet table"] = Format(parquet, lambda: _corpus(parquet), open=True)
    return found


def _corpus(path: Path) -> int:
    fields = {"kind": "files", "files": {"train": str(path)}, "task": {"kind": "classification"}}
    config: CorpusConfig = TypeAdapter(CorpusConfig).validate_python(fields)
    return len(config.build().texts)


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


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes flipped, cut out, put in, doubled or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, n = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
        match rng.randrange(7):
            case 0 if at < len(content):
                content = (
                    content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
                )
            case 1:
                content = content[:at] + content[at + n :]
            case 2:
                content = content[:at] + rng.randbytes(n) + content[at:]
            case 3:
                content = content[:at]
            case 4:
                content = content[:at] + content[at : at + n] * 2 + content[at + n :]
            case 5:
                word = rng.choice(
                    (
                        b"null",
                        b"-1",
                        b"1e999",
                        b"{",
                        b"]",
                        b'"',
                        b"\\u0000",
                        b"\xff\xfe",
                        b"\n",
                        b"&a *a",
                    )
                )
                content = content[:at] + word + content[at + rng.randrange(4) :]
            case _:
                content = content[:at] + content[at : at + n][::-1] + content[at + n :]
    return content


def other_values(content: bytes, rng: random.Random) -> bytes:
    """Sealed JSON with some value replaced, removed or added, under its right checksum."""
    fields = json.loads(content)
    fields.pop("checksum", None)
    place, at = fields, rng.choice(sorted(fields))
    while isinstance(place[at], dict | list) and place[at] and rng.random() < 0.7:
        place = place[at]
        at = rng.choice(sorted(place)) if isinstance(place, dict) else rng.randrange(len(place))
    match rng.randrange(4):
        case 0:
            del place[at]
        case 1 if isinstance(place, dict):
            place["unknown"] = rng.choice(STRANGE)
        case _:
            place[at] = rng.choice(STRANGE)
    return sealed_bytes(fields)


def try_one(form: Format, right: object, content: bytes, *, resealed: bool) -> bool:
    """Read a file with other content, and put the right one back; whether it was refused.

    Raises:
        AssertionError: it was read as something else than what was written, or the error is not ours.
    """
    before = form.path.read_bytes()
    form.path.write_bytes(content)
    try:
        found = form.read()
    except PermafrostError:
        return True
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {content!r:.2000}") from error
    finally:
        form.path.write_bytes(before)
    same = found == right or form.open or resealed
    assert same, f"read as something else: {content!r:.2000}"
    return False


def trial(homes: Homes, folder: Path, rng: random.Random, n: int = 100) -> dict[str, Any]:
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
        for _ in range(n // 10 if form.slow else n):
            resealed = form.sealed and rng.random() < 0.5
            other = (other_values if resealed else mutated)(content, rng)
            try:
                refused = try_one(form, right, other, resealed=resealed)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            counts["contents"] += 1
            counts["refused"] += refused
    return {"counts": counts}
