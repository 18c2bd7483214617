"""What the process that lays out and commits an extraction costs, where others compute.

    OMP_NUM_THREADS=1 python -m benchmarks.coordinator [--texts 1000000] [--workers 1]

The product's coordinator with a stand-in for the backbone: `--workers` processes write drafts of constant
rows for one narrow array. First one extraction into an empty home: milliseconds a segment, of the wall and
of the coordinator's own processor time, and its peak memory, which includes the corpus. Then a process that
opens the store, until it can look any text up and knows which cells are there, and looks all texts up; with
`--cold` also without what an earlier process kept of tables and receipts, which takes minutes.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.commands import narrow_backbone
from benchmarks.measuring import Finding, show
from permafrost.stages.extraction.segment_pool import SegmentTask
from permafrost.storage.features.segment_drafts import Assignment, SealedSegment, SegmentDraft
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.texts import Texts

SEGMENT_TOKENS, SEGMENT_TEXTS = 128, 16
"""A segment holds ten texts of some twelve tokens."""
WAITING = 8
"""Segments under way for each worker."""


def write_draft(cells: Assignment) -> SealedSegment:
    """A sealed draft of constant rows, in the place of what a backbone would give."""
    store = FeatureStore.open(cells.root)
    segment = store.segment(cells.segment)
    with SegmentDraft(store, cells, {"library": "stand-in"}) as draft:
        for array in cells.arrays:
            spec = store.spec(array)
            tail = () if spec.width is None else (spec.width,)
            draft.append(array, np.ones((segment.rows(spec.axis), *tail), spec.storage))
        return draft.seal()


class StandIn:
    """A `SegmentPool` whose workers write constant rows."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        """See `SegmentPool`."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=context) as processes:
            asked: deque[Future[SealedSegment]] = deque()
            for task in tasks:
                asked.append(processes.submit(write_draft, task.cells))
                progress.advance(task.n_tokens)
                if len(asked) >= WAITING * self._workers:
                    yield asked.popleft().result()
            while asked:
                yield asked.popleft().result()


def corpus(n_texts: int) -> tuple[Texts, Texts]:
    """So many texts, and their digests, as a corpus holds them."""
    numbers = Texts(pa.array(range(n_texts)).cast(pa.large_string()))
    texts = numbers.map("text number {} of many more than ten".format)
    return texts, texts.map(text_digest)


def extract_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One extraction into an empty home."""
    from permafrost.stages.extraction.backbone import BackboneConfig
    from permafrost.stages.extraction.capture import parse_capture
    from permafrost.stages.extraction.extract import extract
    from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
    from permafrost.storage.features.layout import Axes

    backbone = BackboneConfig(source=str(folder / "narrow"), max_length=32)
    target = resolve_target(ExtractConfig(backbone=backbone, capture=parse_capture("hidden=1")))
    texts, digests = corpus(args.texts)
    axes = Axes(segment_tokens=SEGMENT_TOKENS, segment_texts=SEGMENT_TEXTS, chunk_bytes=1 << 14)
    begun, used = time.perf_counter(), time.process_time()
    report = extract(
        target, folder / "home", texts, digests, ExtractRuntime(device="cpu"), SilentProgress(),
        axes=axes, pool=StandIn(args.workers),
    )  # fmt: skip
    return {
        "seconds": time.perf_counter() - begun,
        "processor": time.process_time() - used,
        "segments": report.n_segments,
        "peak": peak_bytes(),
    }


def open_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Opening the store, up to knowing every place and every cell."""
    digests = corpus(args.texts)[1]
    begun, used = time.perf_counter(), time.process_time()
    (store,) = all_stores(folder / "home")
    store.locate([])
    missing = store.missing_cells(store.segments(), ["hidden/1"])
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    begun = time.perf_counter()
    where = store.locate(digests)
    looking = time.perf_counter() - begun
    assert not missing
    assert (where.segment >= 0).all()
    return {
        "seconds": seconds,
        "processor": processor,
        "looking": looking,
        "peak": peak_bytes(),
    }


CHILDREN = {"extract": extract_child, "open": open_child}


def peak_bytes() -> int:
    """The largest this process has been."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def child(args: argparse.Namespace, name: str, folder: Path) -> dict[str, float]:
    """What a fresh process found."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.coordinator", "--child", name]
    command += ["--texts", str(args.texts)]
    command += ["--workers", str(args.workers), "--folder", str(folder)]
    environment = os.environ | {"PERMAFROST_CACHE": str(folder / "cache")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """An extraction, and opening what it made."""
    narrow_backbone(folder / "narrow")
    found = child(args, "extract", folder)
    n = found["segments"]
    size = f"{args.texts:,} texts in {n:,.0f} segments"
    yield Finding("ms a segment, processor", 1e3 * found["processor"] / n, "<= 5", size)
    yield Finding("ms a segment, wall", 1e3 * found["seconds"] / n, "", f"{args.workers} workers")
    yield Finding(
        "MB, extraction", found["peak"] / 1e6, "<= 1000", "corpus, torch and tokenizer in it"
    )
    for what, target in ((", nothing kept", ""), ("", "<= 2"))[0 if args.cold else 1 :]:
        if not target:
            shutil.rmtree(folder / "cache")
        found = child(args, "open", folder)
        processor = f"{found['processor']:.2f} s of processor"
        yield Finding(f"s, opened{what}", found["seconds"], target, processor)
        yield Finding(f"MB, opened{what}", found["peak"] / 1e6, "<= 1000", "the corpus in it")
        yield Finding(f"s, all texts looked up{what}", found["looking"])


def main() -> None:
    """Parse the flags, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="also open it with nothing kept")
    parser.add_argument("--folder", type=Path, default=None, help="where to write")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args, args.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="permafrost-benchmark-", dir=args.folder) as folder:
        show(
            "the coordinator of an extraction", list(measure(args, Path(folder))), as_json=args.json
        )


if __name__ == "__main__":
    main()
