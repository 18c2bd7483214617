"""What grows with the number of tokens and of texts.

    OMP_NUM_THREADS=1 python -m benchmarks.memory [--only extraction texts lookup fit] [--tokens 10000 50000]

Each figure is of a fresh process: the largest `RssAnon` (memory that no file stands behind), sampled every
2 ms, less what the same process had before. Pages of mapped files are not counted. `extraction`: all hidden
states, values and attention rows (or `--capture`), beyond the loaded model. `texts`: texts and digests as a
corpus holds them, then the mean of a tiny model's last layer for each, beyond the corpus. `lookup`: finding
texts by digest. `fit`: opening the features that a fit holds, and an epoch of shuffled batches.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.backbone_runs import CAPTURE, QUIET, run_ours, synthetic, target_of
from benchmarks.measuring import Finding, show, watched_memory
from benchmarks.reading import drain, write_case
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.features.places import PLACE, Places
from permafrost.storage.features.segments import SCHEMA
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts

MIB = 1 << 20
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SEGMENT_TEXTS = 1 << 15
BLOCK_TEXTS = 20_000


def extraction_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """An extraction of `--size` tokens, beyond the model."""
    target, texts = target_of(args.backbone, args.capture), synthetic(args.size, args.words)
    backbone = load_backbone(target.files, "float32", "cpu")
    gc.collect()
    peaks: list[int] = []
    clock = CLOCKS[args.clock]
    begin = clock()
    with watched_memory(peaks):
        run_ours(target, folder / "home", texts, backbone, ExtractRuntime().batch_tokens)
    return {"peak": peaks[0], "seconds": clock() - begin}


def texts_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """`--size` short texts: the corpus, then their extraction."""
    from tests.stages.extraction.tiny_models import save_model

    source = save_model("bert", folder / "model")
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(source)), capture=parse_capture("hidden=3@mean")
    )
    target = resolve_target(config)
    backbone = load_backbone(target.files, "float32", "cpu")
    gc.collect()
    held: list[int] = []
    with watched_memory(held):
        numbers = Texts(pa.array(range(args.size)).cast(pa.large_string()))
        texts = numbers.map("snow on the lake {}".format)
        digests = texts.map(text_digest)
    peaks: list[int] = []
    with watched_memory(peaks):
        extract(
            target, folder / "home", texts, digests, ExtractRuntime(), QUIET, load=lambda: backbone
        )
    return {"corpus": held[0], "peak": peaks[0]}


def lookup_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """`--size` known texts, and ten blocks of digests of which two thirds are known."""
    n = args.size
    digests = Texts(pa.array(range(n + n // 2)).cast(pa.large_string())).map(text_digest)
    places = Places()
    for number, at in enumerate(range(0, n, SEGMENT_TEXTS)):
        part = digests[at : min(at + SEGMENT_TEXTS, n)]
        columns = {
            name: pa.array(np.zeros(len(part), np.int64)).cast(SCHEMA.field(name).type)
            for name in PLACE[1:]
        }
        table = pa.table({"digest": pa.array(part, pa.string()), **columns})
        places = places.adding(number, table)
    order = np.random.default_rng(0).permutation(len(digests))
    asked = Texts(pa.array(digests, pa.large_string()).take(pa.array(order)))
    seconds: list[float] = []
    for at in range(0, 10 * BLOCK_TEXTS, BLOCK_TEXTS):
        begin = time.process_time()
        places.find(asked[at : at + BLOCK_TEXTS])
        seconds.append(time.process_time() - begin)
    return {"seconds": statistics.median(seconds)}


def fit_child(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """About `--size` MiB of features in memory."""
    case, _ = write_case(folder, args.size * MIB, 384)
    case.flat_path.unlink()
    gc.collect()
    peaks: list[int] = []
    with watched_memory(peaks):
        reader = case.reader(budget=2 * case.n_bytes)
        drain(reader.shuffled(32, 0, 0))
    return {"peak": peaks[0], "features": case.n_bytes}


CHILDREN: dict[str, Callable[[argparse.Namespace, Path], dict[str, float]]] = {
    "extraction": extraction_child,
    "texts": texts_child,
    "lookup": lookup_child,
    "fit": fit_child,
}


def child(args: argparse.Namespace, job: str, size: int) -> dict[str, float]:
    """Run one job in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--child", job]
    for name in ("backbone", "capture", "clock", "words"):
        command += [f"--{name}", str(getattr(args, name))]
    command += ["--size", str(size)]
    if args.folder is not None:
        command += ["--folder", str(args.folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def extraction(args: argparse.Namespace) -> Iterator[Finding]:
    """Peak and cost of a token, each size over the one before."""
    runs = {n: child(args, "extraction", n) for n in args.tokens}
    peaks = {n: runs[n]["peak"] for n in args.tokens}
    cost = {n: runs[n]["seconds"] / n for n in args.tokens}
    for less, more in pairwise(args.tokens):
        yield Finding(
            f"extraction, peak memory beyond the model, {more:,} tokens / {less:,}",
            peaks[more] / peaks[less],
            "<= 1.1",
            f"{peaks[more] / MIB:.0f} / {peaks[less] / MIB:.0f} MiB",
        )
        yield Finding(
            f"extraction, seconds per token, {more:,} tokens / {less:,}",
            cost[more] / cost[less],
            "<= 1.1",
            f"{1e6 * cost[more]:.0f} / {1e6 * cost[less]:.0f} us",
        )


def texts(args: argparse.Namespace) -> Iterator[Finding]:
    """Bytes that each further text costs."""
    less, more = args.texts
    few, many = child(args, "texts", less), child(args, "texts", more)
    for name, what in (("corpus", "a corpus"), ("peak", "an extraction, beyond the corpus")):
        yield Finding(
            f"bytes for each further text in {what}, {less:,} to {more:,} texts",
            (many[name] - few[name]) / (more - less),
            "",
            f"{few[name] / MIB:.0f} and {many[name] / MIB:.0f} MiB",
        )


def lookup(args: argparse.Namespace) -> Iterator[Finding]:
    """Time of a block."""
    found = child(args, "lookup", args.known)
    yield Finding(
        f"processor time to look up {BLOCK_TEXTS:,} digests among {args.known:,} known texts, ms",
        1e3 * found["seconds"],
    )


def fit(args: argparse.Namespace) -> Iterator[Finding]:
    """Peak of the features that a fit holds over their bytes."""
    found = child(args, "fit", args.megabytes)
    yield Finding(
        "features that a fit holds: peak memory / their bytes",
        found["peak"] / found["features"],
        "<= 1.1",
        f"{found['peak'] / MIB:,.0f} / {found['features'] / MIB:,.0f} MiB",
    )


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Finding]]] = {
    "extraction": extraction,
    "texts": texts,
    "lookup": lookup,
    "fit": fit,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--capture", default=CAPTURE, help="of `extraction`")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="of `extraction`")
    parser.add_argument("--tokens", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--texts", type=int, nargs=2, default=[100_000, 300_000])
    parser.add_argument("--known", type=int, default=1_000_000, help="texts that a store knows")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--words", type=float, default=24, help="median words of a text")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        with tempfile.TemporaryDirectory(prefix="permafrost-memory-", dir=args.folder) as folder:
            print(json.dumps(CHILDREN[args.child](args, Path(folder))))
        return
    findings = [finding for name in args.only for finding in PARTS[name](args)]
    show("memory", findings, as_json=args.json)


if __name__ == "__main__":
    main()
