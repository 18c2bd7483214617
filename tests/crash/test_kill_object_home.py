"""SIGKILL while a home on an object store is written: only what is in the object store counts."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from permafrost.flows.home import open_home
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import detach
from tests.crash.extract_to_object_store import corpus
from tests.stages.extraction.tiny_models import save_model
from tests.storage.object_server import ObjectServer, object_server

HOME = "s3://bucket/lab"
N_TEXTS = 250
N_KILLS = 2


def committed(server: ObjectServer) -> dict[str, bytes]:
    """Content of every receipt; it holds the checksums of its shard."""
    return {key: content for key, content in server.objects.items() if "/receipts/" in key}


@pytest.mark.deep
def test_kills_lose_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    model = save_model("bert", tmp_path / "model")
    root = Path(__file__).parents[2]
    program = [sys.executable, str(Path(__file__).with_name("extract_to_object_store.py"))]
    with object_server() as server:
        environment = {**os.environ, **server.environment, "PYTHONPATH": str(root)}
        before: dict[str, bytes] = {}
        for attempt in range(N_KILLS + 1):
            # Every attempt on a machine that has seen nothing.
            environment["PERMAFROST_CACHE"] = str(tmp_path / f"cache {attempt}")
            child = subprocess.Popen([*program, str(model), HOME, str(N_TEXTS)], env=environment)
            if attempt < N_KILLS:
                enough = len(server.log) + rng.randint(20, 60)
                while len(server.log) < enough:
                    assert child.poll() is None, "ended before it could be killed"
                    time.sleep(0.001)
                child.send_signal(signal.SIGKILL)
            assert child.wait(timeout=120) == (-signal.SIGKILL if attempt < N_KILLS else 0)
            after = committed(server)
            assert {k: after.get(k) for k in before} == before, "a committed cell changed or went"
            assert all(server.requests[f"PUT {k}"] == 1 for k in before), "computed twice"
            before = after
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "reader"))
        home = open_home(HOME, SilentProgress())
        (store,) = all_stores(home)
        assert not verify(store, SilentProgress())
        numbers = store.segments()
        assert not store.missing_cells(numbers, store.arrays())
        held = [t for s in numbers for t in store.segment(s).table.column("text").to_pylist()]
        assert sorted(held) == sorted(corpus(N_TEXTS)), "each text once"
        detach(home)
