"""The demo's run beside a process that keeps one core busy, and with nothing beside it.

    python -m benchmarks.busy_core [--experiment experiments/demo.yaml] [--rounds 1] [--json]

The other process multiplies matrices in one thread without end, at the same priority. Both runs are the
whole command in a new process and a new home. Run it on a machine that does nothing else: about seven
minutes on two cores.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.engines import COMMAND
from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.flows.records.runs import latest_runs

LOOP = "import numpy as np\na = np.ones((512, 512), np.float32)\nwhile True: a @ a"


@contextlib.contextmanager
def busy_core() -> Generator[None]:
    """A process multiplies matrices inside the block."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP], env={**os.environ, **dict.fromkeys(names, "1")}
    )
    try:
        time.sleep(1)
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--experiment", type=Path, default=Path("experiments/demo.yaml"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where homes are made")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen: dict[str, list[str]] = {"idle": [], "busy": []}
    with tempfile.TemporaryDirectory(prefix="permafrost-benchmark-", dir=args.folder) as folder:

        def run(name: str) -> None:
            home = Path(folder) / f"{name}-{len(chosen[name])}"
            command = [sys.executable, "-c", COMMAND, "run", args.experiment, "--home", home]
            print(f"{name} ...", file=sys.stderr, flush=True)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (record,) = latest_runs(home)
            chosen[name].append(f"{record.workers} workers, threads {record.threads}")

        def beside() -> None:
            with busy_core():
                run("busy")

        times = interleaved({"idle": lambda: run("idle"), "busy": beside}, args.rounds)
    seconds = {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}
    findings = [
        Finding("seconds beside a busy core", seconds["busy"], "<= 300", chosen["busy"][0]),
        Finding("seconds with nothing beside it", seconds["idle"], "<= 180", chosen["idle"][0]),
        Finding(
            "idle / busy", ratio(times, "idle", "busy"), ">= 0.5", spread(times, "idle", "busy")
        ),
    ]
    show(f"busy core: {args.experiment.stem}", findings, as_json=args.json)


if __name__ == "__main__":
    main()
