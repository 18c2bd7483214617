"""Kills an extraction at random points, again and again, and checks the store after every kill.

Run by test_kill_extraction.py as a program of its own, because a process that kills its children has
to be single-threaded when it forks:

    python kill_extraction.py MODEL_FOLDER WORK_FOLDER N_KILLS SEED KILL_SHARE

With a KILL_SHARE the segments are computed by workers, of which that share is killed too; those of a killed
extraction live on and find out by themselves. Without ("none"), by the extraction itself.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from permafrost.stages.extraction.backbone import Backbone, BackboneConfig, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.store import DERIVED, FeatureStore, store_folder
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.crash.forked_pool import ForkedPool

WORDS = ("snow", "ice", "frost", "lake", "river", "cold", "warm", "melts", "night", "sun", "wind")
AXES = Axes(segment_tokens=256, segment_texts=32)
RUNTIME = ExtractRuntime(device="cpu", batch_tokens=128, block_texts=64)
Cells = dict[tuple[int, str], tuple[bytes, int]]


def corpus(rng: random.Random, n: int) -> list[str]:
    """Distinct texts of 2 to 25 words."""
    found: dict[str, None] = {}
    while len(found) < n:
        found[" ".join(rng.choices(WORDS, k=rng.randint(2, 25)))] = None
    return list(found)


def run(
    target: ExtractTarget,
    home: Path,
    texts: list[str],
    backbone: Backbone,
    pool: ForkedPool | None = None,
) -> int:
    """One whole extraction; returns the tokens computed."""
    digests = [text_digest(t) for t in texts]
    report = extract(
        target,
        home,
        texts,
        digests,
        RUNTIME,
        SilentProgress(),
        axes=AXES,
        load=lambda: backbone,
        pool=pool,
    )
    return report.n_tokens


def contents(home: Path) -> dict[str, bytes]:
    """Every file of a home but receipts and records, which hold times."""
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.suffix != ".lock" and path.suffix != ".json"
    }


def committed_cells(store: FeatureStore) -> Cells:
    """Receipt bytes and shard modification time of every committed cell."""
    found: Cells = {}
    for segment in store.segments():
        for array in store.committed(segment):
            receipt = store.root / "receipts" / f"{segment:06d}" / f"{array}.json"
            written = store.shard_path(segment, array).stat().st_mtime_ns
            found[segment, array] = (receipt.read_bytes(), written)
    return found


def check_values(store: FeatureStore, expected: dict[str, dict[str, np.ndarray]]) -> int:
    """Compare every committed row with the uninterrupted run; returns the rows compared."""
    compared = 0
    for segment in store.segments():
        digests = store.segment(segment).table.column("digest").to_pylist()
        for array in store.committed(segment).difference(DERIVED):
            reader = open_reader(store, array, digests, budget_bytes=1 << 30, tokens="all")
            for texts, rows in reader.in_order(1000):
                for position, text in enumerate(texts.tolist()):
                    wanted = expected[array][digests[text]]
                    # Batches differ between runs: float16 rounding of noise of about 1e-6.
                    np.testing.assert_allclose(rows[position], wanted, rtol=2e-3, atol=2e-3)
                    compared += len(wanted)
    return compared


def reference(store: FeatureStore, texts: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Rows of every array and text of a finished store."""
    digests = [text_digest(t) for t in texts]
    return {
        array: {
            digests[text]: rows[position].copy()
            for batch, rows in open_reader(
                store, array, digests, budget_bytes=1 << 30, tokens="all"
            ).in_order(1000)
            for position, text in enumerate(batch.tolist())
        }
        for array in store.arrays()
    }


def kill_after(
    delay_s: float,
    target: ExtractTarget,
    home: Path,
    texts: list[str],
    backbone: Backbone,
    pool: ForkedPool | None,
) -> bool:
    """Extract in a child and SIGKILL it after a delay; whether it was still running."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(target, home, texts, backbone, pool)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    time.sleep(delay_s)
    finished, status = os.waitpid(child, os.WNOHANG)
    if finished == 0:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0, "the extraction failed by itself"
    return killed


def main(
    model: Path, work: Path, n_kills: int, seed: int, kill_share: float | None
) -> dict[str, int]:
    """Kill `n_kills` extractions, at least; returns counts of what was checked."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    texts = corpus(rng, 60)
    captures = ["hidden=1@tokens", "hidden=all,values=all,attention_rows=2,hidden=3@mean"]
    targets = [
        resolve_target(
            ExtractConfig(backbone=BackboneConfig(source=str(model)), capture=parse_capture(c))
        )
        for c in captures
    ]
    backbone = load_backbone(targets[0].files, "float32", "cpu")
    run(targets[1], work / "reference", texts, backbone)
    # Timed on the second run: the first one pays for warming up, and most kills would come too late.
    started = time.monotonic()
    run(targets[1], work / "timed", texts, backbone)
    whole_s = time.monotonic() - started
    pool = None
    if kill_share is not None:
        pool = ForkedPool(backbone, rng, kill_share, segment_s=whole_s / 4)
        n_tokens = run(targets[1], work / "forked", texts, backbone, pool)
        assert n_tokens == run(targets[1], work / "again", texts, backbone)
        assert pool.kills, "no worker was killed"
        assert contents(work / "forked") == contents(work / "again"), "killed workers left a trace"
    identity = targets[0].identity
    expected = reference(
        FeatureStore.open(store_folder(work / "reference", identity.store_id)), texts
    )

    counts = {"kills": 0, "finished": 0, "rows_compared": 0, "cells_kept": 0, "reruns_checked": 0}
    home = work / "home"
    # A few kills may all come before anything was committed: go on until some cell survived one.
    while counts["kills"] < n_kills or counts["cells_kept"] <= n_kills:
        # First few layers of half the texts, then wider on both axes: resuming and widening meet kills.
        step = rng.choice([(targets[0], texts[:30]), (targets[1], texts[:30]), (targets[1], texts)])
        before = {}
        root = store_folder(home, identity.store_id)
        if (root / "store.json").exists():
            before = committed_cells(FeatureStore.open(root))
        killed = kill_after(rng.uniform(0, whole_s), *step[:1], home, step[1], backbone, pool)
        counts["kills" if killed else "finished"] += 1
        if not (root / "store.json").exists():
            assert not before, "the store vanished"
            continue
        store = FeatureStore.open(root)
        after = committed_cells(store)
        for cell, state in before.items():
            assert after.get(cell) == state, f"committed cell {cell} was lost or written again"
        counts["cells_kept"] += sum(array not in DERIVED for _, array in before)
        assert verify(store, SilentProgress()) == [], verify(store, SilentProgress())
        counts["rows_compared"] += check_values(store, expected)
        if rng.random() < 0.15 or not killed:
            counts["reruns_checked"] += check_rerun(targets[1], home, texts, backbone)
            shutil.rmtree(home)
    return counts


def check_rerun(target: ExtractTarget, home: Path, texts: list[str], backbone: Backbone) -> int:
    """Finish what kills left: computes exactly the segments that lack a cell, and then nothing."""
    root = store_folder(home, target.identity.store_id)
    store = FeatureStore.open(root)
    before = committed_cells(store)
    known = store.locate([text_digest(t) for t in texts]).segment >= 0
    lacking = store.missing_cells(store.segments(), target.arrays)
    due = sum(store.segment(s).n_tokens for s in lacking)
    done = run(target, home, texts, backbone)
    store = FeatureStore.open(root)
    new = [s for s in store.segments() if not any(c[0] == s for c in before) and s not in lacking]
    due += sum(store.segment(s).n_tokens for s in new)
    assert done == due, f"the rerun computed {done} tokens, {due} were missing"
    assert bool(new) == (not known.all())
    after = committed_cells(store)
    assert all(after[cell] == state for cell, state in before.items())
    assert store.missing_cells(store.segments(), target.arrays) == {}
    assert run(target, home, texts, backbone) == 0
    if not done:
        # Killed after its last receipt: runs that have nothing to write leave the folder to the next writer.
        with writing(store):
            pass
    assert not list(root.rglob(".draft-*")), "a killed writer's drafts were left behind"
    return 1


if __name__ == "__main__":
    model_, work_, n_, seed_, share_ = sys.argv[1:]
    found = main(
        Path(model_), Path(work_), int(n_), int(seed_), None if share_ == "none" else float(share_)
    )
    sys.stdout.write(json.dumps(found))
