"""A fit that is stopped midway and started again ends as if nothing had happened."""

import operator
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from permafrost.stages.fit import FitConfig, OptimConfig, fit
from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.stages.heads import GlotHead, MeanHead, MlpHead
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.storage import durable
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.spent import spent, spent_before
from tests.diagonal import diagonal
from tests.stages.synthetic_fit import PAIR_TASKS, make_data, make_pairs, same_fit


class _Stop(Exception):
    """Raised in the middle of an epoch."""


class _StopsAfter(SilentProgress):
    def __init__(self, steps):
        self.left = steps

    def advance(self, amount, note=""):
        if note:
            self.left -= 1
            if self.left < 0:
                raise _Stop


class _Counts(SilentProgress):
    def __init__(self):
        self.steps, self.total, self.done = 0, 0.0, 0.0

    def start(self, task, total, unit):
        self.total = total

    def advance(self, amount, note=""):
        self.steps += bool(note)
        self.done += amount


def _config(head=None, **settings):
    optim = OptimConfig(
        lr=1e-2, batch_size=16, max_epochs=3, optimizer="adamw", schedule="cosine", warmup=0.1
    )
    head = GlotHead(hidden=6, tau=0.4) if head is None else head
    return FitConfig(head=head, **({"seed": 3, "optim": optim} | settings))


def _resumed(config, data, path, *stops, to_beat=None):
    for steps in stops:
        with pytest.raises(_Stop):
            fit(config, data, _StopsAfter(steps), checkpoint=path, to_beat=to_beat)
        assert path.exists()
    counts = _Counts()
    result = fit(config, data, counts, checkpoint=path, to_beat=to_beat)
    assert counts.done == counts.total
    over = _Counts()
    again = fit(config, data, over, checkpoint=path, to_beat=to_beat)
    assert (over.steps, over.done) == (0, over.total), "killed before the result was saved"
    assert (again.history, again.best) == (result.history, result.best)
    assert all(torch.equal(again.state[name], result.state[name]) for name in result.state)
    return result, counts.steps


# GLOT, two heads with batch normalisation, and one with dropout. A fit has 3 epochs of 6 steps; it stops in a
# later epoch, in the last one, and twice and three times, once in the epoch it resumed.
@pytest.mark.few(2)
@diagonal(
    {
        "head": [
            GlotHead(hidden=6, tau=0.4),
            MlpHead(hidden=6),
            GlotHead(hidden=6, tau=0.4, conv="gin"),
            GlotHead(hidden=6, tau=0.4, conv=PygConv(name="GATv2Conv", args={"dropout": 0.4})),
        ],
        "stops,left": [([8], 12), ([14], 6), ([8, 7], 6), ([8, 3, 7], 6)],
    }
)
def test_a_stopped_fit_continues_bit_for_bit(head, stops, left, tmp_path):
    config, data = _config(head), make_data()
    path = tmp_path / "deep" / "fit.checkpoint"
    result, steps = _resumed(config, data, path, *stops)
    same_fit(result, fit(config, data, SilentProgress()))
    assert steps == left, "only the epochs that were not complete are trained"
    assert {p.name for p in path.parent.iterdir()} == {path.name, "seconds"}, "no draft of it"


def test_the_seconds_of_stopped_fits_are_kept_as_far_as_their_work_is(tmp_path, monkeypatch):
    config, data, now = _config(MeanHead()), make_data(), [0.0]

    class Slow(_StopsAfter):
        """A step takes a second."""

        def advance(self, amount, note=""):
            now[0] += bool(note)
            super().advance(amount, note)

    monkeypatch.setattr("permafrost.stages.fit.checkpoint.time.monotonic", lambda: now[0])
    path = tmp_path / "fit.pt"
    for steps, before, seconds in ((8, 0, 6), (9, 6, 12)):
        with pytest.raises(_Stop):
            fit(config, data, Slow(steps), checkpoint=path)
        assert (spent_before(tmp_path), spent(tmp_path)) == (before, seconds)
    fit(config, data, Slow(99), checkpoint=path)
    assert (spent_before(tmp_path), spent(tmp_path)) == (12, 18)
    with pytest.raises(_Stop):
        fit(_config(seed=4), data, Slow(1), checkpoint=path)
    assert spent(tmp_path) == 0, "another fit does not go on from there"


@pytest.mark.few(1)
@pytest.mark.parametrize("task", list(PAIR_TASKS))
def test_fits_on_pairs_continue_too(task, tmp_path):
    config, data = _config(**PAIR_TASKS[task]), make_pairs(task)
    result, steps = _resumed(config, data, tmp_path / "c", 9)
    same_fit(result, fit(config, data, SilentProgress()))
    assert steps == 4


def test_early_ends_are_the_same_after_a_stop(tmp_path):
    optim = OptimConfig(lr=5e-2, batch_size=16, max_epochs=12, patience=2)
    config = _config(optim=optim, grid_patience=2)
    data = make_data()
    for to_beat in (None, 1.0):
        whole = fit(config, data, SilentProgress(), to_beat=to_beat)
        assert len(whole.history) < 12
        result, _ = _resumed(
            config, data, tmp_path / f"{to_beat}", len(whole.log) - 1, to_beat=to_beat
        )
        same_fit(result, whole)
    assert len(whole.history) == 2, "none of its epochs beats it"


def test_a_pooled_head_continues(tmp_path):
    config, data = _config(MeanHead()), make_data()
    result, _ = _resumed(config, data, tmp_path / "c", 8)
    same_fit(result, fit(config, data, SilentProgress()))


def test_the_checkpoint_of_another_fit_is_not_taken(tmp_path):
    config, data = _config(), make_data()
    path = tmp_path / "c"
    others = [
        (_config(seed=4), data),
        (_config(optim=OptimConfig(lr=2e-2, batch_size=16, max_epochs=3)), data),
        (config, make_data(seed=1)),
        (config, replace(data, digests=tuple(reversed(data.digests)))),
    ]
    whole = fit(config, data, SilentProgress())
    for other, of in others:
        with pytest.raises(_Stop):
            fit(other, of, _StopsAfter(13), checkpoint=path)
        counts = _Counts()
        result = fit(config, data, counts, checkpoint=path)
        assert counts.steps == 18
        same_fit(result, whole)


def test_a_failed_write_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    config, data, path = _config(), make_data(), tmp_path / "c"
    with pytest.raises(_Stop):
        fit(config, data, _StopsAfter(8), checkpoint=path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("the disk went away")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="went away"):
            fit(config, data, SilentProgress(), checkpoint=path)
    assert path.read_bytes() == before
    result, steps = _resumed(config, data, path)
    assert steps == 12
    same_fit(result, fit(config, data, SilentProgress()))


@pytest.mark.parametrize("before", ["draft_path", "os.fsync", "sync_folder"])
def test_a_fit_goes_on_when_another_process_has_published_it(before, tmp_path, monkeypatch):
    config, data, path = _config(), make_data(), tmp_path / "checkpoint" / "fit.pt"
    name, left = f"permafrost.storage.durable.{before}", [path.parent]
    does = operator.attrgetter(before)(durable)
    path.parent.mkdir()

    def late(*given):
        while left:
            shutil.rmtree(left.pop())
        return does(*given)

    monkeypatch.setattr(name, late)
    result = fit(config, data, SilentProgress(), checkpoint=path)
    assert not left
    assert path.exists(), "of a later epoch"
    same_fit(result, fit(config, data, SilentProgress()))


def test_a_checkpoint_that_goes_while_it_is_looked_for_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda *_, **__: True)
    assert Checkpoint(tmp_path / "gone" / "fit.pt", "mine").load() is None


def test_a_damaged_checkpoint_is_named(tmp_path):
    config, data, path = _config(), make_data(), tmp_path / "c"
    with pytest.raises(_Stop):
        fit(config, data, _StopsAfter(8), checkpoint=path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", b"no checkpoint", whole[: len(whole) // 2], whole + b"x", bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match=r"is damaged.*delete it"):
            fit(config, data, SilentProgress(), checkpoint=path)
        assert path.read_bytes() == damaged


def test_a_fit_without_a_checkpoint_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(_config(), make_data(), SilentProgress())
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path

import torch

from tests.stages.fit.test_fit_checkpoint import _config
from permafrost.stages.fit import fit
from permafrost.storage.progress import SilentProgress
from tests.stages.synthetic_fit import make_data

torch.set_num_threads(1)


class Kills(SilentProgress):
    left = 14

    def advance(self, amount, note=""):
        self.left -= bool(note)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


fit(_config(), make_data(), Kills(), checkpoint=Path(sys.argv[1]))
"""


@pytest.mark.deep
def test_a_killed_process_is_continued_by_another(tmp_path):
    path, root = tmp_path / "c", Path(__file__).parents[3]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert killed.returncode == -signal.SIGKILL
    result, steps = _resumed(_config(), make_data(), path)
    assert steps == 6
    same_fit(result, fit(_config(), make_data(), SilentProgress()))
