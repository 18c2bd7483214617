"""What the texts of each corpus take in the feature stores; a text that several corpora have is counted once.
Rows of a text that a store has twice belong to the same corpora.

A text's part of a file is its part of the tokens of that segment, or, on the axis of texts and in tables, of
the texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from permafrost.flows.disk.parts import METADATA, Part, Use, beside_stores
from permafrost.flows.records.history import histories
from permafrost.flows.records.listing import list_artifacts
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.disk_use import FileUse
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.places import PLACE
from permafrost.storage.features.segments import read_segment
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.progress import Progress
from permafrost.storage.texts import Texts

SHARED = "texts that several corpora have, counted once"
NO_CORPUS = "texts of no corpus that is there"
OVERHEAD = "metadata of feature stores, and what cannot be read"
_CORPUS = "corpus"
_DIGEST = "digest"
_AT_A_TIME = 1 << 16
_NONE, _SEVERAL = -1, -2


@dataclass
class _Tally:
    """Sums by corpus."""

    own: NDArray[np.float64]
    """Bytes of texts that only this corpus has `[n_corpora]`."""
    whole: NDArray[np.float64]
    """Bytes of all of its texts `[n_corpora]`."""
    n_own: NDArray[np.int64]
    """Texts that only this corpus has, over all stores `[n_corpora]`."""
    shared: float = 0.0
    none: float = 0.0
    n_shared: int = 0
    n_none: int = 0


def by_corpus(home: Path, files: Sequence[tuple[Part, FileUse]], progress: Progress) -> list[Use]:
    """One row for each corpus, one for texts of several, one for texts of none, and what else there is."""
    corpora = _corpora(home)
    n = len(corpora)
    tally = _Tally(np.zeros(n), np.zeros(n), np.zeros(n, np.int64))
    stores = sorted({part.store for part, _ in files if part.store is not None})
    progress.start("du", len(stores) * max(n, 1), "corpora")
    in_stores = 0
    try:
        for store in stores:
            of_store = [(part, file) for part, file in files if part.store == store]
            in_stores += sum(file.bytes for _, file in of_store)
            _add_store(home, store, of_store, corpora, tally, progress)
    finally:
        progress.finish()
    rows = [
        Use("", name, round(tally.own[i]), int(tally.n_own[i]), round(tally.whole[i]))
        for i, (name, _) in enumerate(corpora)
    ]
    others = [(SHARED, tally.shared, tally.n_shared), (NO_CORPUS, tally.none, tally.n_none)]
    rows += [Use("", name, round(n_bytes), count) for name, n_bytes, count in others if count]
    # Rounding goes here too, so that rows add up to what the files take.
    rest = in_stores - sum(row.bytes for row in rows)
    return [*rows, *([Use("", OVERHEAD, rest)] if rest else []), *beside_stores(files)]


def _corpora(home: Path) -> list[tuple[str, Path]]:
    """Name and folder of every corpus; those of one task are told apart by their keys."""
    artifacts = ArtifactStore(home)
    rows = list_artifacts(home, histories(home).values()).rows
    tasks = {row.ref: row.tasks or "a corpus" for row in rows if row.ref.stage == _CORPUS}
    names = list(tasks.values())

    def name(ref: ArtifactRef) -> str:
        return tasks[ref] if names.count(tasks[ref]) == 1 else f"{tasks[ref]} ({ref.key[:8]})"

    return [(name(ref), artifacts.open(ref)) for ref in tasks]


def _add_store(
    home: Path,
    store_id: str,
    files: Sequence[tuple[Part, FileUse]],
    corpora: Sequence[tuple[str, Path]],
    tally: _Tally,
    progress: Progress,
) -> None:
    """Add the texts of one store."""
    try:
        store = FeatureStore.open(store_folder(home, store_id))
        weights = _Weights.of(store, files)
        store.locate([])
    except (CorruptDataError, InputError, NotFoundError):
        return  # all of it is overhead
    owner = np.full(len(weights.bytes), _NONE, np.int64)
    for number, (_, folder) in enumerate(corpora):
        mine = np.zeros(len(owner), np.bool_)
        for digests in _digests(folder):
            where = store.locate(digests)
            mine[where.text_row[where.segment >= 0]] = True
        mine = mine[weights.first]
        tally.whole[number] += weights.bytes[mine].sum()
        owner[mine] = np.where(owner[mine] == _NONE, number, _SEVERAL)
        progress.advance(1)
    for number in range(len(corpora)):
        only = owner == number
        tally.own[number] += weights.bytes[only].sum()
        tally.n_own[number] += weights.n_texts(only)
    several, none = owner == _SEVERAL, (owner == _NONE) & weights.is_text
    tally.shared += weights.bytes[several].sum()
    tally.n_shared += weights.n_texts(several)
    tally.none += weights.bytes[none].sum()
    tally.n_none += weights.n_texts(none)


@dataclass(frozen=True)
class _Weights:
    """Of each row of the axis `text` of a store."""

    bytes: NDArray[np.float64]
    is_text: NDArray[np.bool_]
    first: NDArray[np.int64]
    """The row by which its text is found; another one where the store has a text again, after a `pull`."""

    def n_texts(self, rows: NDArray[np.bool_]) -> int:
        """How many texts are in some of the rows, each counted once."""
        return len(np.unique(self.first[rows]))

    @classmethod
    def of(cls, store: FeatureStore, files: Sequence[tuple[Part, FileUse]]) -> "_Weights":
        per_text = store.record.axes.segment_texts
        weights = np.zeros(store.n_slots() * per_text)
        is_text, first = np.zeros(len(weights), np.bool_), np.arange(len(weights))
        by_tokens, by_texts = _by_segment(store, files)
        for number in store.tables():
            table = read_segment(store.root, number, PLACE).table
            rows = table.column("text_row").to_numpy()
            tokens = table.column("n_tokens").to_numpy().astype(np.float64)
            if not len(rows):
                continue
            weights[rows] += by_tokens.get(number, 0) * tokens / max(tokens.sum(), 1.0)
            weights[rows] += by_texts.get(number, 0) / len(rows)
            is_text[rows] = True
            where = store.locate(Texts(table.column(_DIGEST)))
            first[rows] = np.where(where.segment >= 0, where.text_row, rows)
        return cls(weights, is_text, first)


def _by_segment(
    store: FeatureStore, files: Sequence[tuple[Part, FileUse]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of each segment that are divided by tokens, and those that are divided by texts."""
    by_tokens, by_texts = dict[int, int](), dict[int, int]()
    for part, file in files:
        number = _segment_of(file.path.split("/")[2:])
        if number is None or part.what == METADATA:
            continue
        sums = by_texts
        if "features.zarr/" in file.path and _is_on_tokens(store, part.what):
            sums = by_tokens
        sums[number] = sums.get(number, 0) + file.bytes
    return by_tokens, by_texts


def _is_on_tokens(store: FeatureStore, array: str) -> bool:
    try:
        return store.spec(array).axis == "token"
    except NotFoundError:
        return False


def _segment_of(inside: Sequence[str]) -> int | None:
    """The segment of a file of a store, by its path in there; None if it is of none."""
    match inside:
        case ["features.zarr", "projections", *_]:
            return None
        case ["features.zarr", *names] if "c" in names[:-1]:
            number = names[names.index("c") + 1]
        case ["receipts", number, _, *_]:
            pass
        case [*_, name] if name.endswith(".parquet"):
            number = name.removesuffix(".parquet")
        case _:
            return None
    return int(number) if number.isdigit() else None


def _digests(folder: Path) -> Iterator[Texts]:
    """Digests of every table of texts in a corpus' folder, in blocks."""
    for path in sorted(folder.glob("*.parquet")):
        try:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                if _DIGEST not in file.schema_arrow.names:
                    continue
                for batch in file.iter_batches(_AT_A_TIME, columns=[_DIGEST], use_threads=False):
                    yield Texts(batch.column(_DIGEST))
        except (OSError, ValueError) as error:
            raise CorruptDataError(f"{path} is no table of texts: {error}") from error
