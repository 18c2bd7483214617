"""Processes that read while `drop`, `repair` and `gc` take things away: right numbers or a clear error."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from permafrost.flows.disk.array_drops import drop_planned, plan_drop
from permafrost.flows.disk.garbage import collect
from permafrost.flows.records.runs import RunRecord, write_run
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import attach, detach
from tests.damage.small_home import FIT, publish
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import ARRAYS, SmallStore, as_float32, new_store

pytestmark = pytest.mark.deep
N_TEXTS = 12
ROUNDS = 4
URL = "s3://bucket/lab"
ADVICE = (
    "extract",
    "un the same command again",
    "permafrost verify",
    "permafrost repair",
    "run again",
)
_GONE = "it was removed since this home was opened"


@dataclass
class Place:
    """A home that is written here, and read by other processes."""

    home: Path
    name: str
    server: ObjectServer | None
    readers: Mapping[str, Mapping[str, str]]
    """How they read, and their environment."""

    def damage(self, small: SmallStore) -> None:
        """Put another file in the place of a shard, as a file system that lost a block does."""
        path = small.store.shard_path(0, "attention_rows/1")
        if self.server is not None:
            key = f"bucket/lab/{path.relative_to(self.home).as_posix()}"
            content = self.server.objects[key]
            self.server.objects[key] = content[:5] + bytes([content[5] ^ 1]) + content[6:]
            return
        content = path.read_bytes()
        other = path.with_name("other")
        other.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
        other.replace(path)


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        home = tmp_path / "home"
        yield Place(home, str(home), None, {"mapped": {}, "unmapped": {}})
        return
    server: ObjectServer = request.getfixturevalue("server")
    caches = {how: {"PERMAFROST_CACHE": str(tmp_path / how)} for how in ("mapped", "unmapped")}
    home = attach(URL, tmp_path / "writer", SilentProgress())
    yield Place(home, URL, server, {how: {**server.environment, **c} for how, c in caches.items()})
    detach(home)


def fill(small: SmallStore) -> None:
    """Extract what is missing: the same rows again."""
    with writing(small.store) as writer:
        writer.declare(ARRAYS)
        cells = small.store.missing_cells(small.store.segments(), ARRAYS)
        for number, arrays in cells.items():
            small.fill(writer, number, arrays, np.random.default_rng(0))


def again(home: Path, small: SmallStore) -> SmallStore:
    """The store that was removed, extracted anew."""
    made = new_store(home)
    made.rows = small.rows
    made.add([f"text {i}" for i in range(N_TEXTS)], [5 + 2 * i for i in range(N_TEXTS)])
    return made


def test_readers_go_on_or_are_told(place: Place, tmp_path: Path) -> None:
    publish(place.home, FIT)
    write_run(
        place.home, RunRecord(experiment="x", finished="", artifacts=(str(FIT.ref),), stores=())
    )
    small = again(place.home, SmallStore(new_store(place.home).store))
    expected = {
        f"{array}|{text}": as_float32(small.expected(array, text), small.store.spec(array).dtype)
        for array in ARRAYS
        for text in small.texts
    }
    np.savez(tmp_path / "expected.npz", allow_pickle=False, **expected)
    program = [sys.executable, str(Path(__file__).with_name("read_beside.py"))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    results = {how: tmp_path / f"{how}.json" for how in place.readers}
    stop = tmp_path / "stop"
    children = {
        how: subprocess.Popen(
            [
                *program,
                how,
                place.name,
                str(tmp_path / "expected.npz"),
                str(stop),
                str(results[how]),
            ],
            env={**environment, **own},
            stderr=subprocess.PIPE,
            text=True,
        )
        for how, own in place.readers.items()
    }
    try:
        wait(children, results, dict.fromkeys(children, 1))
        for _ in range(ROUNDS):
            plan = plan_drop(place.home, None, ["hidden/1"])
            drop_planned(plan, "unused", SilentProgress())
            time.sleep(0.3)
            fill(small)
            place.damage(small)
            time.sleep(0.3)
            mended = mend(small.store.root, SilentProgress())
            assert mended.cells == {0: ("attention_rows/1",)}
            assert not receipt_path(small.store.root, 0, "attention_rows/1").exists()
            time.sleep(0.3)
            fill(SmallStore(mended.store, small.texts, small.rows))
            assert collect(place.home, []).remove() == {}
            assert all_stores(place.home) == []
            time.sleep(0.3)
            small = again(place.home, small)
            done = {how: n_read(path) for how, path in results.items()}
            wait(children, results, {how: n + 1 for how, n in done.items()})
    finally:
        stop.touch()
        ends = {how: (child.communicate()[1], child.returncode) for how, child in children.items()}
    for how, (said, code) in ends.items():
        assert code == 0, f"{how}: {code} {said}"
        told = json.loads(results[how].read_text())["errors"]
        assert told, "nothing was taken away while it read"
        for message in told:
            assert any(advice in message for advice in ADVICE), message
            # Nothing is called damaged but what was damaged, or is just being taken away elsewhere.
            is_damage = message.startswith("CorruptDataError")
            assert not is_damage or "attention_rows/1" in message or _GONE in message, message


def n_read(result: Path) -> int:
    return min(json.loads(result.read_text())["read"].get(a, 0) for a in ARRAYS)


def wait(
    children: Mapping[str, "subprocess.Popen[str]"],
    results: Mapping[str, Path],
    at_least: Mapping[str, int],
) -> None:
    """Until every reader has read every array so often."""
    for how, n in at_least.items():
        while not (results[how].exists() and n_read(results[how]) >= n):
            assert children[how].poll() is None, children[how].communicate()[1]
            time.sleep(0.05)
