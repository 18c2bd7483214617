"""The seconds of an artifact are those of its making: waits for other processes are not among them."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from permafrost.flows import context as contexts
from permafrost.flows import gpu_lock
from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.gpu_lock import FOLDER, GpuLock
from permafrost.flows.graph import Node
from permafrost.storage.artifacts import Draft
from permafrost.storage.features import turns
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.waiting import writing_when_free
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import Progress, SilentProgress, Waits
from tests.flows.engine.sums import Sum, backbone_total
from tests.storage.small_store import filled_store

WAITED_S = 0.6


class Locks:
    """A store's lease and a GPU's lock, each held by somebody else, and what waits for it."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store

    @contextmanager
    def gpu_held(self) -> Generator[None]:
        lock = GpuLock()
        lock.hold("cuda:0")
        yield
        lock.release()

    def held(self, what: str) -> AbstractContextManager[Any]:
        return self.gpu_held() if what == "gpu" else writing(self.store)

    def wait(self, what: str, context: RunContext, progress: Progress) -> None:
        if what == "gpu":
            # As probes and trainings do, which name no progress.
            context.backbone.load(cast("Any", None), "auto")
        else:
            with writing_when_free(self.store, progress):
                pass


def held_for(seconds: float, lock: AbstractContextManager[Any]) -> threading.Thread:
    """Another thread that holds a lock for so long."""
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            threading.Event().wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    return thread


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locks:
    monkeypatch.setenv(FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu_lock, "gpu_id", lambda device: "gpu-a")
    monkeypatch.setattr(contexts, "device_name", lambda name: {"auto": "cuda:0"}.get(name, name))
    monkeypatch.setattr(contexts.SharedBackbone, "_cached", lambda *_: None)
    monkeypatch.setattr(gpu_lock, "LOOK_S", 0.01)
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    return Locks(filled_store(tmp_path / "home", 3).store)


@pytest.mark.parametrize("what", ["store", "gpu"])
def test_waiting_is_not_counted(
    locks: Locks, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., None] = Sum.run

    def run(node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        other = held_for(WAITED_S, locks.held(what))
        locks.wait(what, context, progress)
        assert isinstance(progress, Waits)
        assert progress.seconds > WAITED_S / 2
        other.join()
        real(node, context, draft, progress)

    monkeypatch.setattr(Sum, "run", run)
    node, context = backbone_total("sum", 1), RunContext(tmp_path / "home", RunRuntime())
    make(node, context, SilentProgress())
    assert context.artifacts.manifest(node.ref).provenance["seconds"] < WAITED_S
