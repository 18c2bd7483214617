"""One experiment on every engine: seconds of its segments and fits, by the number of Dask workers.

    python -m benchmarks.engines [--only serial prefect dask-1 dask-2 dask-4] [--rounds 2] [--json]

Each round runs the whole command in a new process and a new home, in turns: generated texts through MiniLM
in segments of `--segment-tokens` tokens, then `--fits` small fits (GLOT and the scorer on their cached
states), their scores and the report. A stage has one thread, but with the engine `prefect`, which chooses as
it does for users.
`work` lasts from the first segment to the last score; for Dask it begins when the cluster stands. What it
took to start the cluster stands apart, and both are in the total. Processor seconds are of all processes of
a run, sampled, so they miss what a process does in its last moments; on a machine that others use they
compare where seconds do not. Fits of one thread must have the same weights everywhere, or nothing is
printed.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.measuring import Finding, Times, ratio, show, spread
from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.store import FeatureStore

COMMAND = "import sys; from permafrost.flows.cli import main; sys.argv[0] = 'permafrost'; main()"
CONFIGURATIONS: dict[str, list[str]] = {
    "serial": ["--engine", "serial", "--set", "runtime.threads=1"],
    "prefect": ["--engine", "prefect"],
    **{
        f"dask-{n}": [
            "--engine",
            "dask",
            "--set",
            "runtime.threads=1",
            "--set",
            f"runtime.workers={n}",
        ]
        for n in (1, 2, 4)
    },
}
STANDS = re.compile(r"after ([0-9.]+) s: [0-9]+ Dask workers")
"""What a run says when its cluster can be used."""
TOKENS_PER_TEXT = 88
SAMPLED_EVERY_S = 1.0
"""Looking through all processes takes hundredths of a second, on the processors that are measured."""
PARTS = {"server_process": "server", "cluster_process": "cluster", "permafrost.flows.cli": "run"}
"""What processes are, by a word in their command; others are workers."""


def experiment(args: argparse.Namespace) -> dict[str, Any]:
    """Two tasks, most of whose texts are test texts, so that fits are small."""
    n_texts = args.segments * args.segment_tokens // TOKENS_PER_TEXT // 2
    n_test = max(2, n_texts - args.train - 60)
    task = {"kind": "dilution", "signal": "tiled", "n_words": 80, "gap": 3}
    task |= {"n_train": args.train, "n_dev": 60, "n_test": n_test + n_test % 2}
    optim = {"lr": 2e-3, "batch_size": 32, "max_epochs": args.epochs, "patience": None}
    heads = {
        "GLOT": {"kind": "glot", "n_convs": 2, "hidden": 64, "tau": 0.3},
        "scorer": {"kind": "scorer", "hidden": 128},
    }
    return {
        "name": "engines",
        "backbone": {"source": "minilm"},
        "capture": "hidden=3@tokens",
        "tasks": {f"ratio {r}": {**task, "ratio": r, "seed": i} for i, r in enumerate((0.5, 0.8))},
        "methods": {
            name: {"kind": "head", "head": head, "layer": "hidden/3", "optim": optim}
            for name, head in heads.items()
        },
        "seeds": list(range(-(-args.fits // 4))),
        "report": {"title": "Engines"},
    }


@dataclass
class Run:
    """What one run took."""

    seconds: dict[str, float] = field(default_factory=dict)
    """`total`, and of that `start-up` of a cluster, `extraction` and `work`."""
    processor: dict[str, float] = field(default_factory=dict)
    """Processor seconds, by part."""
    weights: dict[str, str] = field(default_factory=dict)
    """Checksums of the files of fits, by artifact."""
    segments: int = 0


class Processes:
    """Samples the processor time of a process and of all that descend from it."""

    def __init__(self, root: int) -> None:
        self._root, self._done = psutil.Process(root), threading.Event()
        self._seen: dict[psutil.Process, tuple[str, float]] = {}
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLED_EVERY_S):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in family:
                try:
                    words, times = " ".join(process.cmdline()), process.cpu_times()
                except psutil.Error:
                    continue
                part = next((p for word, p in PARTS.items() if word in words), "workers")
                # A process that was forked is its parent until it has another command.
                self._seen[process] = part, times.user + times.system

    def end(self) -> dict[str, float]:
        """Seconds by part, with their sum."""
        self._done.set()
        self._thread.join()
        found: dict[str, float] = {}
        for part, seconds in self._seen.values():
            found[part] = found.get(part, 0.0) + seconds
        return {"all": sum(found.values()), **found}


def made_home(file: Path, home: Path, segment_tokens: int) -> None:
    """A home with an empty store of small segments."""
    graph = build_graph(load_experiment(file))
    ((target,),) = (stores.targets for stores in graph.stores.values())
    axes = Axes(segment_tokens=segment_tokens, segment_texts=segment_tokens // 8)
    backbone = {"source": target.files.source, "revision": target.files.revision or ""}
    FeatureStore.create_or_open(
        home, target.identity, target.store_sizes, backbone, codec=target.codec, axes=axes
    )


def run(file: Path, home: Path, arguments: Sequence[str]) -> Run:
    """Run the experiment in a new process."""
    result, begin, clock = Run(), time.perf_counter(), time.time()
    command = [sys.executable, "-c", COMMAND, "run", str(file), "--home", str(home), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    sampled, stood, said = Processes(process.pid), 0.0, []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if (found := STANDS.search(line)) is not None:
            stood = time.time()
            result.seconds["start-up"] = float(found[1])
    code = process.wait()
    result.seconds["total"] = time.perf_counter() - begin
    result.processor = sampled.end()
    if code:
        raise SystemExit(f"{' '.join(arguments)} ended with {code}:\n{''.join(said)}")
    made: dict[str, list[float]] = {}
    for manifest in ArtifactStore(home).all():
        path = home / "artifacts" / str(manifest.ref) / "artifact.json"
        made.setdefault(manifest.spec.stage, []).append(path.stat().st_mtime)
        if manifest.spec.stage == "fit":
            sums = [f.sha256 for name, f in sorted(manifest.files.items()) if "safetensors" in name]
            result.weights[str(manifest.ref)] = " ".join(sums)
    began = stood or max(made["corpus"])
    result.seconds["extraction"] = max(made["extract"]) - began
    result.seconds["work"] = max(made["score"]) - began
    result.seconds["before"] = began - clock - result.seconds.get("start-up", 0.0)
    result.segments = len(list(home.glob("features/*/segments/*")))
    return result


def findings(runs: Mapping[str, Sequence[Run]]) -> Iterator[Finding]:
    """Ratios first, then what each configuration took."""
    for what, less in (("work", ""), ("total", ""), ("total", "start-up")):
        times: Times = {
            name: [r.seconds[what] - r.seconds.get(less, 0.0) for r in done]
            for name, done in runs.items()
        }
        for over, under in (("dask-1", "dask-2"), ("dask-2", "dask-4"), ("serial", "dask-1")):
            if over not in runs or under not in runs:
                continue
            targets = {"dask-2": ">= 1.8", "dask-4": ">= 1"} if what == "work" else {}
            yield Finding(
                f"{what}{' less ' * bool(less)}{less}: {over} / {under}",
                ratio(times, over, under),
                targets.get(under, ""),
                spread(times, over, under),
            )
    for name, done in runs.items():
        parts = {
            key: statistics.median(r.seconds.get(key, 0.0) for r in done) for key in done[0].seconds
        }
        processor = {
            key: statistics.median(r.processor.get(key, 0.0) for r in done)
            for key in done[0].processor
        }
        shown = ", ".join(f"{key} {s:.1f}" for key, s in parts.items() if key != "total")
        used = ", ".join(f"{key} {s:.1f}" for key, s in processor.items())
        yield Finding(f"{name}: seconds in all", parts["total"], "", f"{shown}; processor: {used}")


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=[*CONFIGURATIONS], default=[*CONFIGURATIONS])
    parser.add_argument("--segments", type=int, default=52)
    parser.add_argument("--segment-tokens", type=int, default=4096)
    parser.add_argument("--fits", type=int, default=72)
    parser.add_argument("--train", type=int, default=240, help="texts that a fit trains on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where homes are made")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    runs: dict[str, list[Run]] = {name: [] for name in args.only}
    with tempfile.TemporaryDirectory(prefix="permafrost-benchmark-", dir=args.folder) as folder:
        file = Path(folder) / "engines.yaml"
        file.write_text(yaml.safe_dump(experiment(args)))
        for i in range(args.rounds):
            first = i % len(args.only)
            for name in args.only[first:] + args.only[:first]:
                home = Path(folder) / f"{name}-{i}"
                made_home(file, home, args.segment_tokens)
                print(f"round {i + 1}, {name} ...", file=sys.stderr, flush=True)
                runs[name].append(run(file, home, CONFIGURATIONS[name]))
    one_thread = [r for name, done in runs.items() if name != "prefect" for r in done]
    if any(r.weights.keys() != one_thread[0].weights.keys() for r in one_thread):
        raise SystemExit("runs made other fits: the code was changed between them")
    if any(r.weights != one_thread[0].weights for r in one_thread):
        raise SystemExit("weights of fits differ between engines")
    some = runs[args.only[0]][0]
    title = f"engines: {some.segments} segments of {args.segment_tokens:,} tokens, {len(some.weights)} fits"
    show(title, list(findings(runs)), as_json=args.json)


if __name__ == "__main__":
    main()
