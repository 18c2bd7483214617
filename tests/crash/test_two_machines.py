"""Two machines with a replica each extract one corpus into a home on an object store."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from permafrost.flows.home import open_home
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.storage.features.store import ALWAYS, FeatureStore, all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from permafrost.storage.replica import detach
from tests.crash.extract_to_object_store import AXES, corpus, target_of
from tests.stages.extraction.tiny_models import save_model
from tests.storage.object_server import ObjectServer

HOME = "s3://bucket/lab"
N_TEXTS = 100
PROGRAM = [sys.executable, str(Path(__file__).with_name("extract_in_turns.py"))]


def machine(server: ObjectServer, model: Path, cache: Path) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        **server.environment,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PERMAFROST_CACHE": str(cache),
    }
    return subprocess.Popen(
        [*PROGRAM, str(model), HOME, str(N_TEXTS), cache.name.replace(" ", "-")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def rows(store: FeatureStore, array: str) -> Iterator[np.ndarray]:
    digests = [text_digest(t) for t in corpus(N_TEXTS)]
    reader = open_reader(
        store, array, digests, budget_bytes=1 << 26, precision="stored", tokens="all"
    )
    return (batch[i] for found, batch in reader.in_order(64) for i in range(len(found)))


@pytest.mark.deep
def test_two_machines_make_in_turns_what_one_makes(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model("bert", tmp_path / "model")
    machines = [machine(server, model, tmp_path / f"cache {i}") for i in range(2)]
    for one in machines:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in machines:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    told = [one.communicate(timeout=300)[0] for one in machines]
    assert [one.returncode for one in machines] == [0, 0]
    computed = [int(said) for said in told]

    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "reader"))
    home = open_home(HOME, SilentProgress())
    (store,) = all_stores(home)
    texts = corpus(N_TEXTS)
    alone = extract(
        target_of(model),
        tmp_path / "alone",
        texts,
        [text_digest(t) for t in texts],
        ExtractRuntime(device="cpu", batch_tokens=128, block_texts=64),
        SilentProgress(),
        axes=AXES,
    )
    assert min(computed) > 0, "one machine got nowhere"
    assert sum(computed) == alone.n_cells, "a cell was computed twice"
    receipts = [k for k in server.requests if k.startswith("PUT ") and "/receipts/" in k]
    assert all(server.requests[k] == 1 for k in receipts)
    assert verify(store, SilentProgress()) == []
    assert store.segments() == alone.store.segments()
    for array in (*ALWAYS, *store.arrays()):
        pairs = zip(rows(store, array), rows(alone.store, array), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), array
    assert not [k for k in server.objects if "lease" in k or "wanted" in k]
    detach(home)
