"""What each file of a home is part of, and sums of what parts take."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from permafrost.storage.disk_use import FileUse
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.identity import flatten
from permafrost.storage.features.record import StoreRecord, read_record
from permafrost.storage.features.store import store_folder

METADATA = "metadata"
"""What describes a store as a whole: `store.json`, Zarr groups."""
_TABLES = ("segments", "receipts", "copies")
_NO_STAGE = ("runs", "other files")
_DAMAGED = "stores whose store.json is damaged"


@dataclass(frozen=True)
class Part:
    """What a file is part of."""

    store: str | None
    """Id of a feature store; None of anything else."""
    what: str
    """Array, or one of the folders of a store; else stage, or folder of the home."""

    @property
    def room(self) -> str:
        """Where it lies, for people."""
        if self.store is not None:
            return f"features/{self.store[:12]}"
        return "" if self.what in _NO_STAGE else "artifacts"


@dataclass(frozen=True)
class Use:
    """One row of the listing."""

    where: str
    """Empty unless it is by place."""
    what: str
    bytes: int
    n_texts: int | None = None
    """By corpus: texts that are counted here."""
    with_shared: int | None = None
    """By corpus: bytes with those of texts that other corpora have too."""

    def as_json(self) -> dict[str, Any]:
        """Fields that it has."""
        fields = {**vars(self), "where": self.where or None}
        return {name: value for name, value in fields.items() if value is not None}


def part_of(path: str) -> Part:
    """What a file of a home is part of, by its path below the home."""
    names = path.split("/")
    match names:
        case ["features", store, "features.zarr", *inside] if len(inside) > 1:
            array = inside[: inside.index("c")] if "c" in inside else inside[:-1]
            # The metadata of `hidden` is that of a group.
            is_array = "c" in inside or len(array) == _DEPTHS.get(array[0], 2)
            return Part(store, "/".join(array) if is_array else METADATA)
        case ["features", store, folder, _, *_]:
            return Part(store, folder if folder in _TABLES else METADATA)
        case ["features", store, _]:
            return Part(store, METADATA)
        case ["artifacts", stage, _, *_]:
            return Part(None, stage)
        case ["runs", _, *_]:
            return Part(None, "runs")
        case _:
            return Part(None, "other files")


_DEPTHS = {"token_ids": 1, "span": 1, "text_of_token": 1, "pooled": 3, "projections": 3}
"""Names in the path of an array, where they are not two (`hidden/1`)."""


def beside_stores(files: Iterable[tuple[Part, FileUse]]) -> list[Use]:
    """What is in no feature store."""
    return summed(((p, f) for p, f in files if p.store is None), lambda p: ("", beside(p)))


def beside(part: Part) -> str:
    """The row of a part that is in no feature store."""
    return part.what if part.what in _NO_STAGE else "artifacts"


def summed(
    files: Iterable[tuple[Part, FileUse]], group: Callable[[Part], tuple[str, str]]
) -> list[Use]:
    """One row for each group of parts, which is its `where` and `what`."""
    sums = Counter[tuple[str, str]]()
    for part, file in files:
        sums[group(part)] += file.bytes
    return [Use(where, what, n_bytes) for (where, what), n_bytes in sums.items()]


def ordered(rows: Iterable[Use]) -> list[Use]:
    """The largest first; of the same size by name."""
    return sorted(rows, key=lambda row: (-row.bytes, row.where, row.what))


def store_labels(
    home: Path, by: Literal["backbone", "recipe"], ids: Iterable[str]
) -> dict[str, str]:
    """What each store is of, for people: its backbone or its recipe."""
    records, labels = dict[str, StoreRecord](), dict[str, str]()
    for store in sorted(ids):
        try:
            records[store] = read_record(store_folder(home, store))
        except (CorruptDataError, InputError, NotFoundError):
            labels[store] = _DAMAGED
    if by == "backbone":
        return labels | _backbones(records)
    return labels | _recipes(records)


def _backbones(records: Mapping[str, StoreRecord]) -> dict[str, str]:
    """By weights: the first place where they were found, with their digest if others were found there too."""
    source = dict[str, str]()
    for record in records.values():
        source.setdefault(record.identity.weights_digest, record.backbone.get("source", "unknown"))
    times = Counter(source.values())
    return {
        store: name if times[name := source[weights]] == 1 else f"{name} ({weights[:8]})"
        for store, weights in ((s, r.identity.weights_digest) for s, r in records.items())
    }


def _recipes(records: Mapping[str, StoreRecord]) -> dict[str, str]:
    """Its kind, with the fields in which it differs from others of that kind."""
    fields = {s: flatten(r.identity.recipe) for s, r in records.items()}
    labels = dict[str, str]()
    for store, own in fields.items():
        of_kind = [f for f in fields.values() if f.get("kind") == own.get("kind")]
        differing = [
            f"{name}={own[name]}"
            for name in sorted(own)
            if any(other.get(name) != own[name] for other in of_kind)
        ]
        labels[store] = ":".join(filter(None, [str(own.get("kind")), ",".join(differing)]))
    return labels
