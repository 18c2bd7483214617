"""Kinds of file of a home, and kinds of damage."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from permafrost.flows.records.runs import run_path
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.record import copy_path, record_path
from permafrost.storage.features.segments import segment_path, table_copy
from tests.damage.small_home import CORPUS, FIT, UNUSED, SmallHome
from tests.storage.small_store import flip


@dataclass(frozen=True)
class Kind:
    """One kind of file: an example, and another one of the same kind to swap it with."""

    path: Path
    twin: Path | None
    guards: bool = False
    """Whether it says what is in use, so that `gc` has to stop."""
    silent: frozenset[str] = frozenset()
    """Damage that `verify` need not name, as nothing that is in use differs by it."""


def kinds(home: SmallHome) -> dict[str, Kind]:
    """By name."""
    first, second = (home.folder(s) for s in home.stores)
    arrays = first / "features.zarr"
    projections = arrays / "projections"
    artifacts = ArtifactStore(home.root)
    used, unused = (artifacts.folder(s.ref) for s in (FIT, UNUSED))
    content = frozenset({"flip", "late flip", "digit", "cut", "longer", "zeros", "empty", "delete"})
    gone = frozenset({"delete"})
    found = {
        "store.json": Kind(record_path(first), record_path(second), guards=True),
        # Written again with the next data.
        "copy of store.json": Kind(copy_path(first), copy_path(second), silent=gone),
        "segment table": Kind(segment_path(first, 1), segment_path(first, 0)),
        "copy of a table": Kind(table_copy(first, 1), table_copy(first, 0), silent=gone),
        "first segment's table": Kind(segment_path(first, 0), segment_path(second, 0)),
        "root group": Kind(arrays / "zarr.json", None),
        "group": Kind(arrays / "hidden" / "zarr.json", None),
        "group of projections": Kind(projections / "o_proj" / "zarr.json", None),
        # What it says of the holder is for people.
        "writer.lock": Kind(first / "writer.lock", None, silent=content),
        # An artifact without a manifest was never made; the run that names it says that it is not there.
        "manifest": Kind(
            used / "artifact.json", artifacts.folder(CORPUS.ref) / "artifact.json", True
        ),
        "manifest that no run uses": Kind(
            unused / "artifact.json", used / "artifact.json", silent=gone
        ),
        "file of an artifact": Kind(
            used / "numbers.bin", artifacts.folder(CORPUS.ref) / "numbers.bin"
        ),
        # Deleting a record is how a user lets go of an experiment.
        "run": Kind(run_path(home.root, "first"), run_path(home.root, "second"), True, gone),
    }
    for array in ("token_ids", "hidden/1", "pooled/hidden_mean/1"):
        twin = {"hidden/1": "hidden/2"}.get(array)
        found[f"metadata of {array}"] = Kind(
            arrays / array / "zarr.json", arrays / "hidden/2" / "zarr.json"
        )
        tail = ("c", "1") if array in ("token_ids", "span") else ("c", "1", "0")
        shard = arrays.joinpath(array, *tail)
        found[f"shard of {array}"] = Kind(
            shard, shard if twin is None else arrays.joinpath(twin, *tail)
        )
        # A cell without a receipt is not there: readers say so, the next extraction computes it.
        found[f"receipt of {array}"] = Kind(
            receipt_path(first, 1, array), receipt_path(first, 0, array), silent=gone
        )
    for name, tail in (("o_proj", ("c", "0", "0")), ("o_proj_bias", ("c", "0"))):
        one, two = (projections / name / block for block in ("1", "2"))
        found[f"numbers of {name}"] = Kind(one.joinpath(*tail), two.joinpath(*tail))
        # The weight's metadata says that a projection is there: without it, it was never stored.
        silent = gone if name == "o_proj" else frozenset[str]()
        found[f"metadata of {name}"] = Kind(one / "zarr.json", two / "zarr.json", silent=silent)
    return found


def _another_digit(path: Path, which: float) -> None:
    """Change a digit (the one at that share of all digits); a file without digits gets a byte flipped."""
    content = bytearray(path.read_bytes())
    digits = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if not digits:
        flip(path, int(which * len(content)))
        return
    at = digits[int(which * len(digits))]
    content[at] = 48 + (content[at] - 48 + 1) % 10
    path.write_bytes(content)


def _replace(path: Path, with_folder: bool) -> None:
    path.unlink()
    if with_folder:
        path.mkdir()
        (path / "inside").write_text("x")
    else:
        path.symlink_to("nowhere")


def _swap(path: Path, twin: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(twin.read_bytes())
    twin.write_bytes(content)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flip": lambda p: flip(p, p.stat().st_size // 3, mask=0x01),
    "late flip": lambda p: flip(p, p.stat().st_size * 7 // 8, mask=0x04),
    "digit": lambda p: _another_digit(p, 0.5),
    "cut": _cut,
    "longer": _extend,
    "zeros": _zeros,
    "empty": lambda p: p.write_bytes(b""),
    "delete": lambda p: p.unlink(),
    "folder": lambda p: _replace(p, with_folder=True),
    "dangling link": lambda p: _replace(p, with_folder=False),
}
"""What happens to the bytes of one file; `swap` needs two."""


def damage(kind: Kind, how: str) -> bool:
    """Do it; False where it changes nothing."""
    before = kind.path.read_bytes()
    if how == "swap":
        if kind.twin is None or kind.twin.read_bytes() == before:
            return False
        _swap(kind.path, kind.twin)
        return True
    DAMAGE[how](kind.path)
    return not kind.path.is_file() or kind.path.read_bytes() != before


def remove_leftovers(path: Path) -> None:
    """What a test put in the place of a file."""
    shutil.rmtree(path, ignore_errors=True)
