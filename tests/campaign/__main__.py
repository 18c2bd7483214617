"""Faults on purpose, counted: `python -m tests.campaign --only kills --n 500 --folder build/campaign`.

Each trial draws what happens from the seed, the fault and its number, and adds a line to `log.jsonl` in the
folder; the same command goes on where it was stopped. Exit code 1 if a trial has failed.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from markupsafe import Markup

from permafrost.stages.report import canvas
from tests.campaign import clock, formats, writers
from tests.campaign.bucket import bucket
from tests.campaign.damage import Damages
from tests.campaign.disks import Disks
from tests.campaign.homes import Homes, make_homes
from tests.campaign.kills import kills
from tests.campaign.log import Log

EVERY = 1_000_000
"""As many as there are."""
Trial = Callable[[int, random.Random], dict[str, Any] | None]
"""Does the trial of a number; returns what is counted, by name, under `counts`, and what else the log is to
hold, or None if there is no trial of that number. Raises AssertionError."""


@dataclass(frozen=True)
class Asked:
    """What the trials of a fault are made with."""

    homes: Homes
    folder: Path
    """Of their own."""
    seed: int
    n_contents: int
    """Of every format in a trial."""


Trials = Callable[[Asked], AbstractContextManager[Trial]]


@contextmanager
def _kills(asked: Asked) -> Iterator[Trial]:
    with kills(asked.homes, asked.folder) as found:
        yield lambda number, rng: found.trial(rng)


def _disks(fault: Literal["full", "forbidden"], asked: Asked) -> Trial:
    return Disks(asked.homes, asked.folder, fault, asked.seed).trial


@contextmanager
def _writers(asked: Asked) -> Iterator[Trial]:
    known = shutil.copytree(os.environ["PERMAFROST_CACHE"], asked.folder / "known")
    place = asked.folder / "trial"
    with bucket() as server:
        yield lambda number, rng: writers.trial(asked.homes, place, server, known, number, rng)


def _clock(asked: Asked) -> Trial:
    return lambda number, rng: clock.trial(asked.homes, asked.folder / "trial", rng)


def _formats(asked: Asked) -> Trial:
    place = asked.folder / "trial"
    return lambda number, rng: formats.trial(asked.homes, place, rng, asked.n_contents)


def _workers(asked: Asked) -> Trial:
    # Imported here: Dask takes a second, and its threads are not for a process that forks.
    from tests.campaign import workers

    return lambda number, rng: workers.trial(asked.homes, asked.folder, rng)


FAULTS: dict[str, tuple[Trials, str, int]] = {
    "kills": (_kills, "kills", 500),
    "full": (lambda asked: nullcontext(_disks("full", asked)), "faults", EVERY),
    "forbidden": (lambda asked: nullcontext(_disks("forbidden", asked)), "faults", EVERY),
    "writers": (_writers, "starts", 140),
    "clock": (lambda asked: nullcontext(_clock(asked)), "clocks", 50),
    "damage": (
        lambda asked: nullcontext(Damages(asked.homes, asked.folder, asked.seed).trial),
        "damages",
        EVERY,
    ),
    "formats": (lambda asked: nullcontext(_formats(asked)), "contents", 100_000),
    "workers": (lambda asked: nullcontext(_workers(asked)), "workers lost", 20),
}
"""By name: trials, what of their counts is to reach a number, and that number."""


def main() -> int:
    """Run the trials that are left."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument("--n", type=int, help="how many of each; by default as in FAULTS")
    parser.add_argument(
        "--contents", type=int, default=100, help="of every format, in a trial of formats"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/campaign"))
    parser.add_argument("--summary", action="store_true", help="only say what the log has")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    log = Log(folder / "log.jsonl")
    left = {fault: _left(fault, asked.seed, asked.n, log) for fault in asked.only}
    if not asked.summary and any(n > 0 for n in left.values()):
        _prepare()
        homes = make_homes(folder / "homes")
        for fault in asked.only:
            given = Asked(homes, folder / fault, asked.seed, asked.contents)
            _run(fault, given, left[fault], log)
    sys.stdout.write(log.summary() + "\n")
    return int(any(e["failure"] for f in asked.only for e in log.entries(f, asked.seed)))


def _left(fault: str, seed: int, n: int | None, log: Log) -> int:
    """How much of a fault is not in the log yet."""
    _, counted, default = FAULTS[fault]
    done = sum(e.get("counts", {}).get(counted, 0) for e in log.entries(fault, seed))
    return (default if n is None else n) - done


def _prepare() -> None:
    """One thread, as this process forks; no pictures and no waiting for the disk, which take longest and
    which no fault here touches."""
    torch.set_num_threads(1)
    canvas.png = lambda figure: b"\x89PNG\r\n\x1a\n"
    canvas.svg = lambda *_: canvas.InlineSvg(Markup("<svg/>"))
    os.fsync = _looked_at


def _looked_at(fd: Any) -> None:
    os.fstat(fd)


def _run(fault: str, asked: Asked, left: int, log: Log) -> None:
    trials, counted, _ = FAULTS[fault]
    seed, number = asked.seed, len(log.entries(fault, asked.seed))
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir()
    with trials(asked) as trial:
        while left > 0:
            began, failure, found = time.monotonic(), None, dict[str, Any]()
            try:
                answer = trial(number, random.Random(f"{seed} {fault} {number}"))
                if answer is None:
                    return
                found = answer
            except AssertionError as error:
                failure = str(error) or traceback.format_exc()
            log.add(
                {
                    "fault": fault,
                    "seed": seed,
                    "trial": number,
                    "failure": failure,
                    "seconds": round(time.monotonic() - began, 1),
                    "commit": _COMMIT,
                    **found,
                }
            )
            left -= found.get("counts", {}).get(counted, 0) if failure is None else 1
            number += 1


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


_COMMIT = _commit()

if __name__ == "__main__":
    sys.exit(main())
