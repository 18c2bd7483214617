"""Segments computed elsewhere: the same store as one process makes, whatever the order, twice or not."""

import json
import pickle
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from permafrost.stages.extraction import computing, segment_pool
from permafrost.stages.extraction.backbone import Backbone, BackboneFiles, load_backbone
from permafrost.stages.extraction.extract import ExtractReport, extract, recompute_cells
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded, Recipe
from permafrost.stages.extraction.recording import Keep
from permafrost.stages.extraction.segment_pool import SegmentPool, SegmentTask, compute_segment
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.storage.errors import (
    CorruptDataError,
    NotFoundError,
    OverflowRangeError,
    StoreBusyError,
)
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.segment_drafts import SealedSegment, SegmentDraft
from permafrost.storage.features.shard import ShardWriter
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.features.verification import discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress, SilentProgress
from tests.stages.extraction.small_extraction import AXES, MORE, Extraction
from tests.stages.extraction.tiny_models import TEXTS

ALL = [*TEXTS, *MORE]
RUNTIME = ExtractRuntime(device="cpu", batch_tokens=64)


class Counter:
    """Progress that adds up."""

    def __init__(self) -> None:
        self.total = self.done = 0.0

    def start(self, task: str, total: float, unit: str) -> None:
        self.total += total

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount

    def finish(self) -> None:
        pass


@dataclass
class Elsewhere:
    """Computes tasks as other processes would: each is sent as bytes, and so is what comes back.

    All tasks are taken first and done in another order; some are given up half-way and done again, and some
    are done, and given back, twice.
    """

    backbone: Backbone
    seed: int = 0
    taken: int = 0

    def load(self, target: ExtractTarget, device: str) -> Backbone:
        return self.backbone

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        rng = random.Random(self.seed)
        sent = [pickle.dumps(task) for task in tasks]
        self.taken += len(sent)
        rng.shuffle(sent)
        sent += sent[:2]
        for at, content in enumerate(sent):
            task: SegmentTask = pickle.loads(content)
            if at % 2:
                self.give_up(task)
            try:
                sealed = compute_segment(task, self.load, SilentProgress())
            except Exception as error:
                raise pickle.loads(pickle.dumps(error)) from error
            progress.advance(task.n_tokens)
            yield pickle.loads(pickle.dumps(sealed))

    def give_up(self, task: SegmentTask) -> None:
        """Leave what a worker leaves that is killed half-way."""
        draft = SegmentDraft(FeatureStore.open(task.cells.root), task.cells, {})
        assert draft.is_open


def run(
    extraction: Extraction,
    target: ExtractTarget,
    pool: SegmentPool | None,
    texts: list[str] = ALL,
    batch_tokens: int = 64,
) -> tuple[ExtractReport, Counter]:
    progress = Counter()
    digests = [text_digest(t) for t in texts]
    report = extract(
        target,
        extraction.home,
        texts,
        digests,
        ExtractRuntime(device="cpu", batch_tokens=batch_tokens, block_texts=7),
        progress,
        axes=AXES,
        load=extraction.load,
        pool=pool,
    )
    return report, progress


def content(store: FeatureStore) -> dict[str, bytes]:
    """Every file of a store by name; of receipts all but the time, of the record all but its time."""
    found = {
        p.relative_to(store.root).as_posix(): p.read_bytes()
        for p in store.root.rglob("*")
        if p.is_file() and p.name != "writer.lock"
    }
    for name in list(found):
        if name.startswith("receipts/") or name.endswith("store.json"):
            fields = json.loads(found[name])
            fields.pop("checksum")
            fields.pop("created", None)
            fields.get("provenance", {}).pop("committed", None)
            found[name] = json.dumps(fields).encode()
    return found


@pytest.fixture
def here(tiny_files: Callable[[str], BackboneFiles], tmp_path: Path) -> Extraction:
    return Extraction(tiny_files("bert"), tmp_path / "here")


@pytest.fixture
def there(here: Extraction, tmp_path: Path) -> Extraction:
    return Extraction(here.files, tmp_path / "there")


def test_the_store_is_byte_for_byte_the_one_that_one_process_makes(
    here: Extraction, there: Extraction
) -> None:
    target = here.target("hidden=1,attention_rows=2,hidden=2@mean")
    one, told_here = run(here, target, None)
    pool = Elsewhere(load_backbone(there.files, "float32", "cpu"))
    other, told_there = run(there, target, pool)
    assert one.n_segments == pool.taken > 4, "one segment would have no order"
    assert content(other.store) == content(one.store)
    assert replace(other, store=one.store) == one
    assert other.n_tokens == told_here.done == told_here.total == told_there.total
    assert there.loads == 1, "the output projections are the coordinator's"
    assert not list(there.home.rglob(".draft-*"))
    assert run(there, target, pool)[0].n_tokens == 0


def test_arrays_that_are_written_beside_each_other_are_the_same(
    here: Extraction, there: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = here.target("hidden=all,attention_rows=all,hidden=2@mean")
    threads = dict[str, set[str]]()  # of the pool, whose names have a number
    for name in ("append", "seal"):
        whole, of_name = getattr(ShardWriter, name), threads.setdefault(name, set())

        def noted(*args: Any, whole: Any = whole, of_name: set[str] = of_name) -> Any:
            if (own := threading.current_thread().name).startswith("permafrost-disk_"):
                of_name.add(own)
            return whole(*args)

        monkeypatch.setattr(ShardWriter, name, noted)
    in_turn, _ = run(here, target, None)
    assert not any(threads.values()), threads
    monkeypatch.setitem(segment_pool.WRITERS, "cpu", 4)
    beside, _ = run(there, target, None)
    assert all(threads.values()), threads
    assert content(in_turn.store) == content(beside.store)
    assert verify(beside.store, SilentProgress()) == []


def test_a_full_disk_while_arrays_are_written_beside_each_other(
    here: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is dropped with nobody writing to it, and what comes next starts from a whole store."""
    target = here.target("hidden=all")
    monkeypatch.setitem(segment_pool.WRITERS, "cpu", 4)

    def full(writer: ShardWriter, rows: object) -> None:
        time.sleep(0.02)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "append", full)
        with pytest.raises(OSError, match="No space left"):
            run(here, target, None)
    root = store_folder(here.home, target.identity.store_id)
    assert not [p for p in root.rglob("*") if p.is_file() and ".draft-" in p.as_posix()]
    report, _ = run(here, target, None)
    assert verify(report.store, SilentProgress()) == []


def test_a_pool_fills_what_is_missing_and_nothing_else(here: Extraction) -> None:
    """Old segments hold texts of every block of texts, and each is computed once."""
    run(here, here.target("hidden=1"), None, ALL[:9])
    pool = Elsewhere(load_backbone(here.files, "float32", "cpu"))
    target = here.target("hidden=1-2")
    shuffled = [*ALL[5:], *ALL[:5]]
    report, _ = run(here, target, pool, shuffled)
    assert pool.taken == report.n_segments == len(report.store.segments())
    assert report.store.missing_cells(report.store.segments(), target.arrays) == {}
    assert verify(report.store, SilentProgress()) == []
    assert here.loads == 1, "only the first extraction was of this process"


def test_repair_goes_through_the_pool(here: Extraction) -> None:
    target = here.target("hidden=all")
    store = run(here, target, None)[0].store
    before = content(store)
    shard = store.shard_path(1, "hidden/2")
    shard.write_bytes(shard.read_bytes()[:-1])
    store = FeatureStore.open(store.root)
    with writing(store) as writer:
        cells = discard(writer, verify(store, SilentProgress()))
    assert cells == {1: ("hidden/2",)}
    pool = Elsewhere(load_backbone(here.files, "float32", "cpu"))
    n_tokens = recompute_cells(store, target, cells, RUNTIME, SilentProgress(), pool=pool)
    assert n_tokens == store.segment(1).n_tokens
    assert content(store) == before


def test_an_overflow_elsewhere_is_the_same_error_and_what_was_committed_stays(
    here: Extraction, there: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))

    def wild(backbone: Backbone, encoded: Encoded, arrays: list[str], recipe: Recipe, keep: Keep):
        def keep_wild(name: str, rows: torch.Tensor) -> torch.Tensor:
            if next(calls) == 1:
                rows[0, 3] = 1e6
            return keep(name, rows)

        return forward(backbone, encoded, arrays, recipe, keep_wild)

    target = here.target("hidden=1")
    messages: list[str] = []
    backbone = load_backbone(here.files, "float32", "cpu")
    for extraction, pool in ((here, None), (there, Elsewhere(backbone))):
        calls = iter(range(1000))
        with monkeypatch.context() as patch:
            patch.setattr(computing, "forward", wild)
            with pytest.raises(OverflowRangeError, match="hidden/1 holds the activation") as error:
                # One batch a segment, so that it is the second one that fails.
                run(extraction, target, pool, batch_tokens=1024)
        messages.append(str(error.value))
        store = FeatureStore.open(store_folder(extraction.home, target.identity.store_id))
        whole = [s for s in store.segments() if "hidden/1" in store.committed(s)]
        assert len(whole) == 1 < len(store.segments()), (
            "what was sealed before the error is committed"
        )
        assert verify(store, SilentProgress()) == []
        assert not list(store.root.rglob(".draft-*"))
        rest, _ = run(extraction, target, pool)
        assert rest.n_segments == len(rest.store.segments()) - len(whole)
    assert messages[0] == messages[1]


def test_other_tokens_than_those_stored_are_the_same_error(
    here: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(here, here.target("hidden=1"), None)
    encoded_as_before = ExtractTarget.encoded

    def moved(target: ExtractTarget, texts: Sequence[str]) -> Encoded:
        encoded = encoded_as_before(target, texts)
        encoded.token_ids.data[0] += 1
        return encoded

    messages: list[str] = []
    for pool in (None, Elsewhere(load_backbone(here.files, "float32", "cpu"))):
        with monkeypatch.context() as patch:
            patch.setattr(ExtractTarget, "encoded", moved)
            with pytest.raises(
                CorruptDataError, match=r"segment \d of .* holds different tokens"
            ) as error:
                run(here, here.target("hidden=2"), pool)
        messages.append(str(error.value).partition("holds")[2])
    assert messages[0] == messages[1]


def test_a_second_coordinator_is_refused_while_the_first_waits_for_its_pool(
    here: Extraction,
) -> None:
    target = here.target("hidden=1")

    class Nosy(Elsewhere):
        def compute(
            self, tasks: Iterable[SegmentTask], progress: Progress
        ) -> Generator[SealedSegment]:
            first, *rest = list(tasks)
            yield compute_segment(first, self.load, progress)
            with pytest.raises(StoreBusyError, match="being written by process"):
                run(here, target, None)
            assert first.cells.drafts.is_dir(), "a refused writer cleans nothing up"
            for task in rest:
                yield compute_segment(task, self.load, progress)

    report, _ = run(here, target, Nosy(load_backbone(here.files, "float32", "cpu")))
    assert report.n_segments == len(report.store.segments()) > 1
    assert verify(report.store, SilentProgress()) == []


def test_a_pool_that_is_left_early_is_closed(here: Extraction) -> None:
    closed: list[bool] = []

    class Foreign(Elsewhere):
        def compute(
            self, tasks: Iterable[SegmentTask], progress: Progress
        ) -> Generator[SealedSegment]:
            try:
                for sealed in super().compute(tasks, progress):
                    yield replace(sealed, store_id="0" * 64)
            finally:
                closed.append(True)

    with pytest.raises(CorruptDataError, match="was written for the store 000000000000"):
        run(
            here,
            here.target("hidden=1"),
            Foreign(load_backbone(here.files, "float32", "cpu")),
        )
    assert closed == [True]
    assert not list(here.home.rglob(".draft-*"))
    assert not list(here.home.rglob("receipts/*/span.json"))


def test_a_task_carries_all_that_a_process_with_another_working_folder_needs(
    here: Extraction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here.files.folder.parent)
    target = here.target("hidden=1")
    target = replace(target, files=replace(target.files, source=here.files.folder.name))
    loaded: list[tuple[str, str]] = []

    class Away(Elsewhere):
        def load(self, target: ExtractTarget, device: str) -> Backbone:
            loaded.append((target.files.source, device))
            return self.backbone

        def compute(
            self, tasks: Iterable[SegmentTask], progress: Progress
        ) -> Generator[SealedSegment]:
            sent = list(tasks)
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path)
                for task in sent:
                    yield compute_segment(task, self.load, progress)

    segment_pool._target.cache_clear()  # pyright: ignore[reportPrivateUsage]
    report, _ = run(here, target, Away(load_backbone(here.files, "float32", "cpu")))
    assert verify(report.store, SilentProgress()) == []
    assert set(loaded) == {(str(here.files.folder), "cpu")}


def test_a_store_that_a_worker_does_not_see_is_told(here: Extraction) -> None:
    backbone = load_backbone(here.files, "float32", "cpu")

    class Blind(Elsewhere):
        def compute(
            self, tasks: Iterable[SegmentTask], progress: Progress
        ) -> Generator[SealedSegment]:
            for task in tasks:
                away = replace(task.cells, root=Path("/nowhere") / task.cells.root.name)
                yield compute_segment(replace(task, cells=away), self.load, progress)

    with pytest.raises(NotFoundError, match="/nowhere"):
        run(here, here.target("hidden=1"), Blind(backbone))


def test_splits_for_want_of_memory_elsewhere_are_reported(
    here: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(backbone: Backbone, encoded: Encoded, arrays: list[str], recipe: Recipe, keep: Keep):
        if len(encoded) * int(encoded.token_ids.lengths.max()) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(backbone, encoded, arrays, recipe, keep)

    monkeypatch.setattr(computing, "forward", small)
    report, _ = run(
        here, here.target("hidden=1"), Elsewhere(load_backbone(here.files, "float32", "cpu"))
    )
    noted = [
        read_receipt(report.store.root, s, "hidden/1").provenance.get(computing.SPLIT_FROM)
        for s in report.store.segments()
    ]
    assert report.split_from == min(int(n) for n in noted if n is not None) > 40


def test_a_segment_is_committed_while_the_next_ones_are_computed(here: Extraction) -> None:
    """A kill costs what is in flight, not everything that was sealed before."""
    target = here.target("hidden=1")
    root = store_folder(here.home, target.identity.store_id)
    seen: list[frozenset[str]] = []

    class Waiting(Counter):
        def advance(self, amount: float, note: str = "") -> None:
            super().advance(amount)
            if self.done > 0.7 * self.total and not seen:
                # The disk has a thread of its own: it is waited for, the end of the run is not.
                store, deadline = FeatureStore.open(root), time.monotonic() + 200
                while "hidden/1" not in store.committed(0) and time.monotonic() < deadline:
                    time.sleep(0.01)
                seen.append(store.committed(0))

    digests = [text_digest(t) for t in ALL]
    runtime = ExtractRuntime(device="cpu", batch_tokens=16)
    report = extract(target, here.home, ALL, digests, runtime, Waiting(), axes=AXES, load=here.load)
    assert len(report.store.segments()) > 3
    assert "hidden/1" in seen[0]
