"""Reading and writing a feature store against plain files with the same bytes.

    OMP_NUM_THREADS=2 python -m benchmarks.reading [--megabytes 1000] [--json]

The store is synthetic: one array of float16, texts of log-normal length, written through the store's
own writer. The plain file holds the same rows without gaps. Throughput ratios are ours over plain, so
1 is as fast as the plain file and more is better. Cold means that the files were dropped from the page
cache (posix_fadvise) and the store was opened anew, so that every checksum is verified again.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import (
    Finding,
    Times,
    evict,
    interleaved,
    ratio,
    show,
    spread,
    watched_memory,
)
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.features.layout import StoreSizes
from permafrost.storage.features.receipts import measure
from permafrost.storage.features.segment_drafts import SegmentDraft
from permafrost.storage.features.segments import build_table, pack
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import offsets_of, ranges
from permafrost.storage.readers import InMemoryReader, WindowedReader, open_reader

ARRAY, BATCH = "hidden/1", 32
MEDIAN_TOKENS, SPREAD, MAX_LENGTH = 30, 0.7, 512
READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Case:
    """A store and a plain file with the same rows."""

    root: Path
    flat_path: Path
    width: int
    digests: list[str]
    """In the order of their rows."""
    offsets: NDArray[np.int64]

    @property
    def n_bytes(self) -> int:
        return int(self.offsets[-1]) * self.width * 2

    def flat(self) -> NDArray[np.float16]:
        """The plain file, mapped."""
        shape = (int(self.offsets[-1]), self.width)
        return np.memmap(self.flat_path, dtype=np.float16, mode="r", shape=shape)

    def reader(
        self, budget: int, precision: Literal["float32", "stored"] = "stored"
    ) -> InMemoryReader | WindowedReader:
        """A reader of a store that was opened just now."""
        store = FeatureStore.open(self.root)
        return open_reader(store, ARRAY, self.digests, budget_bytes=budget, precision=precision)

    def files(self) -> list[Path]:
        return [self.flat_path, *(p for p in self.root.rglob("*") if p.is_file())]


def write_case(folder: Path, n_bytes: int, width: int) -> tuple[Case, Times]:
    """Write both, in turns segment by segment; returns the seconds of each."""
    rng = np.random.default_rng(0)
    n_tokens = n_bytes // (2 * width)
    draws = rng.lognormal(np.log(MEDIAN_TOKENS), SPREAD, 2 * n_tokens // MEDIAN_TOKENS)
    lengths = np.clip(draws.astype(np.int64), 1, MAX_LENGTH)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), n_tokens)) + 1]
    texts = [f"text {i}" for i in range(len(lengths))]
    identity = StoreIdentity(
        weights_digest="synthetic",
        tokenizer_digest="synthetic",
        recipe={"kind": "plain"},
        compute_dtype="float32",
        storage_dtype="float16",
        max_length=MAX_LENGTH,
    )
    sizes = StoreSizes(n_layers=1, d_model=width, d_value=width, n_attn_heads=1)
    store = FeatureStore.create_or_open(folder / "home", identity, sizes, {"source": "synthetic"})
    axes = store.record.axes
    base = rng.standard_normal((axes.segment_tokens, width), dtype=np.float32).astype(np.float16)
    statistics = measure(base[:1000])
    order: list[NDArray[np.int64]] = []
    times: Times = {"ours": [], "plain": []}
    flat_path = folder / "flat.bin"
    with writing(store) as writer, flat_path.open("wb", buffering=0) as flat:
        for number, members in enumerate(pack(lengths, axes)):
            mine = lengths[members]
            zeros = np.zeros(len(mine), np.int64)
            names = [texts[i] for i in members]
            table = build_table(number, axes, names, mine, zeros, mine, np.zeros(len(mine), bool))
            writer.add_segment(table, number)
            rows = np.roll(base, number, axis=0)[: mine.sum()]
            cells = writer.assign(number, ["token_ids", "span"])
            with SegmentDraft(store, cells, {}) as draft:
                draft.append("token_ids", np.zeros(len(rows), np.int32))
                draft.append("span", np.ones(len(rows), bool))
                writer.commit(draft.seal())

            def ours(number: int = number, rows: NDArray[np.float16] = rows) -> None:
                with SegmentDraft(store, writer.assign(number, [ARRAY]), {}) as draft:
                    draft.append(ARRAY, rows, statistics)
                    writer.commit(draft.seal())

            def plain(rows: NDArray[np.float16] = rows) -> None:
                view = memoryview(rows).cast("B")
                while len(view):
                    view = view[flat.write(view) :]
                os.fsync(flat.fileno())

            calls: list[tuple[str, Callable[[], None]]] = [("ours", ours), ("plain", plain)]
            for name, call in calls if number % 2 else calls[::-1]:
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
            order.append(members)
        writer.declare([ARRAY])
    members = np.concatenate(order)
    digests = [text_digest(texts[i]) for i in members]
    return Case(store.root, flat_path, width, digests, offsets_of(lengths[members])), times


def drain(batches: Iterator[object]) -> None:
    """Read everything and keep nothing."""
    for _ in batches:
        pass


def read_flat(case: Case) -> None:
    """The plain file, front to back into one buffer."""
    buffer = bytearray(READ_BYTES)
    with case.flat_path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def gather(case: Case, epoch: int, *, wide: bool) -> None:
    """Shuffled batches out of the mapped plain file, a slice per text."""
    flat, offsets = case.flat(), case.offsets.tolist()
    order = np.random.default_rng([0, epoch]).permutation(len(case.digests))
    for at in range(0, len(order), BATCH):
        texts = order[at : at + BATCH].tolist()
        rows = np.concatenate([flat[offsets[i] : offsets[i + 1]] for i in texts])
        if wide:
            rows.astype(np.float32)


def gather_rows(case: Case, epoch: int) -> None:
    """The same as one fancy index per batch."""
    flat, lengths = case.flat(), np.diff(case.offsets)
    order = np.random.default_rng([0, epoch]).permutation(len(case.digests))
    for at in range(0, len(order), BATCH):
        texts = order[at : at + BATCH]
        flat[ranges(case.offsets[texts], lengths[texts])]


def check(case: Case, budget: int) -> None:
    """Every reader gives the plain file's rows."""
    flat = case.flat()
    for reader in (case.reader(2 * case.n_bytes), case.reader(budget)):
        seen = 0
        for texts, rows in reader.shuffled(BATCH, 0, 0):
            at = ranges(case.offsets[texts], rows.lengths)
            assert np.array_equal(rows.data, flat[at]), "a reader gave other rows than were written"
            seen += len(texts)
        assert seen == len(case.digests), "a reader left texts out"


def warm_times(case: Case, budget: int, rounds: int) -> Times:
    """Readers that stay open; the first round verifies checksums."""
    memory, window = case.reader(2 * case.n_bytes), case.reader(budget)
    wide_memory = case.reader(2 * case.n_bytes, "float32")
    wide_window = case.reader(budget, "float32")
    epoch = iter(range(10**6))
    return interleaved(
        {
            "read": partial(read_flat, case),
            "scan": lambda: drain(window.in_order(BATCH)),
            "scan float32": lambda: drain(wide_window.in_order(BATCH)),
            "gather": lambda: gather(case, next(epoch), wide=False),
            "gather rows": lambda: gather_rows(case, next(epoch)),
            "gather float32": lambda: gather(case, next(epoch), wide=True),
            "memory": lambda: drain(memory.shuffled(BATCH, 0, next(epoch))),
            "memory float32": lambda: drain(wide_memory.shuffled(BATCH, 0, next(epoch))),
            "window": lambda: drain(window.shuffled(BATCH, 0, next(epoch))),
            "window float32": lambda: drain(wide_window.shuffled(BATCH, 0, next(epoch))),
        },
        rounds + 1,
    )


def cold_times(case: Case, budget: int, rounds: int) -> Times:
    """The cache dropped and the store opened anew before each; nothing may be mapped meanwhile."""
    epoch = iter(range(10**6))
    return interleaved(
        {
            "read": partial(read_flat, case),
            "scan": lambda: drain(case.reader(budget).in_order(BATCH)),
            "gather": lambda: gather(case, next(epoch), wide=False),
            "memory": lambda: drain(case.reader(2 * case.n_bytes).shuffled(BATCH, 0, next(epoch))),
            "window": lambda: drain(case.reader(budget).shuffled(BATCH, 0, next(epoch))),
        },
        rounds,
        before=lambda: evict(case.files()),
    )


def measured(case: Case, budget: int, rounds: int) -> list[Finding]:
    """All reading ratios."""
    warm = warm_times(case, budget, rounds)
    first = {name: values[:1] for name, values in warm.items()}
    warm = {name: values[1:] for name, values in warm.items()}
    cold = cold_times(case, budget, rounds)
    peaks: list[int] = []
    reader = case.reader(budget)
    with watched_memory(peaks):
        drain(reader.shuffled(BATCH, 0, 0))
    speed = case.n_bytes / 1e9

    def line(what: str, times: Times, ours: str, plain: str, target: str = "") -> Finding:
        rate = f"plain {speed / np.median(times[plain]):.2f} GB/s; {spread(times, plain, ours)}"
        return Finding(what, ratio(times, plain, ours), target, rate)

    return [
        line("scan / raw read, warm", warm, "scan", "read", ">= 0.5"),
        line("scan verifying every checksum / raw read, warm", first, "scan", "read"),
        line("scan as float32 / raw read, warm", warm, "scan float32", "read"),
        line("scan, opened anew / raw read, cold", cold, "scan", "read", ">= 0.9"),
        line("epoch in memory / memmap gather, warm", warm, "memory", "gather", ">= 0.5"),
        line("epoch in memory / fancy index on memmap, warm", warm, "memory", "gather rows"),
        line(
            "epoch in memory / memmap gather, float32, warm",
            warm,
            "memory float32",
            "gather float32",
            ">= 0.5",
        ),
        line("epoch windowed / memmap gather, warm", warm, "window", "gather", ">= 0.5"),
        line(
            "epoch windowed / memmap gather, float32, warm",
            warm,
            "window float32",
            "gather float32",
            ">= 0.5",
        ),
        line("load and epoch in memory / memmap gather, cold", cold, "memory", "gather", ">= 0.8"),
        line("epoch windowed / memmap gather, cold", cold, "window", "gather", ">= 0.8"),
        Finding(
            "extra memory of a windowed epoch / budget",
            peaks[0] / budget,
            "<= 1.25",
            f"budget {budget >> 20} MiB of {case.n_bytes >> 20} MiB",
        ),
        Finding(
            "raw read cold / warm (1: the cache was not dropped)",
            float(np.median(cold["read"]) / np.median(warm["read"])),
        ),
    ]


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the array")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--budget", type=int, default=256, help="MiB of a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="permafrost-reading-", dir=args.folder))
    try:
        case, writes = write_case(folder, args.megabytes * 10**6, args.width)
        check(case, args.budget << 20)
        findings = [
            Finding(
                "write and fsync / raw write and fsync",
                ratio(writes, "plain", "ours"),
                "",
                f"plain {case.n_bytes / 1e9 / sum(writes['plain']):.2f} GB/s; "
                f"{spread(writes, 'plain', 'ours')}",
            ),
            *measured(case, args.budget << 20, args.rounds),
        ]
    finally:
        shutil.rmtree(folder)
    title = f"reading: {args.megabytes} MB, width {args.width}, batches of {BATCH} texts"
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
