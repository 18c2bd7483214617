"""What the benchmark programs share: interleaved timing, ratios, and how results are printed."""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

Times = dict[str, list[float]]
"""Per name, the seconds of every round."""


@dataclass(frozen=True)
class Finding:
    """One line of a result."""

    what: str
    value: float
    target: str = ""
    """For example `<= 1.15`; empty where nothing is promised."""
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the value keeps the target; None without one."""
        if not self.target:
            return None
        sign, bound = self.target.split()
        return self.value <= float(bound) if sign == "<=" else self.value >= float(bound)


def measured(
    parts: Mapping[str, Callable[[argparse.Namespace, Path], Iterable[Finding]]],
    args: argparse.Namespace,
) -> list[Finding]:
    """The parts named by `--only`, in a folder of their own inside `--folder` that is removed at the end."""
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="permafrost-benchmark-", dir=args.folder) as folder:
        for name in args.only:
            print(f"{name} ...", file=sys.stderr)
            findings += parts[name](args, Path(folder))
    return findings


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Seconds of each call, one of each per round, in turns that begin with another one each time.

    `before` runs, untimed, before each call. The clock is the wall's unless another one is given.
    """
    times: Times = {name: [] for name in calls}
    names = list(calls)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            before()
            begin = clock()
            calls[name]()
            times[name].append(clock() - begin)
    return times


def ratio(times: Times, over: str, under: str) -> float:
    """Median over rounds of `over / under`, each taken inside one round."""
    pairs = zip(times[over], times[under], strict=True)
    return statistics.median(a / b for a, b in pairs)


def spread(times: Times, over: str, under: str) -> str:
    """Lowest and highest ratio of a round."""
    pairs = [a / b for a, b in zip(times[over], times[under], strict=True)]
    return f"rounds {min(pairs):.2f} to {max(pairs):.2f}"


@contextmanager
def watched_memory(peaks: list[int]) -> Iterator[None]:
    """Append to `peaks` the largest growth of this process's own (not file-backed) memory, sampled."""
    done = threading.Event()
    before = most = own_bytes()

    def sample() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, own_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(most - before)


def own_bytes() -> int:
    """Memory of this process that belongs to no file."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def evict(paths: Sequence[Path]) -> None:
    """Drop files from the page cache; only what no one has mapped or not yet flushed stays."""
    os.sync()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def show(title: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings as a Markdown table, or as JSON, with the machine they were measured on."""
    if as_json:
        lines = [{**asdict(f), "met": f.met} for f in findings]
        print(json.dumps({"title": title, "machine": _machine(), "findings": lines}, indent=1))
        return
    print(markdown(title, findings), end="")


def markdown(title: str, findings: Sequence[Finding]) -> str:
    """Findings as a Markdown table below a line that names the machine they were measured on."""
    words = ", ".join(f"{name} {value}" for name, value in _machine().items())
    table = Table("what", "measured", "target", "met", "detail", box=box.MARKDOWN)
    for f in findings:
        met = {True: "yes", False: "NO", None: ""}[f.met]
        table.add_row(f.what, f"{f.value:.3g}", f.target, met, f.detail)
    out = io.StringIO()
    # Wide enough that no row is wrapped, which Markdown does not know.
    Console(file=out, width=400).print(table)
    return f"{title} ({words})\n{out.getvalue()}"


def _machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
