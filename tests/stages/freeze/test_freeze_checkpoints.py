"""A FREEZE! fit or pretraining that is stopped midway and started again ends as if nothing had happened."""

import pytest
import torch

from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.stages.freeze import AutoencoderConfig, EncoderSizes
from permafrost.stages.freeze.fit_pairs import fit_pairs
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.progress import SilentProgress
from tests.stages.fit.test_fit_checkpoint import _Counts, _Stop, _StopsAfter
from tests.stages.freeze.planted_pairs import make_latents
from tests.stages.freeze.test_fit_pairs import (
    DEV,
    HEADS,
    LATENTS,
    TEST,
    TRAIN,
    _autoencoders,
    _config,
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _same(result, whole):
    assert (result.history, result.log, result.best) == (whole.history, whole.log, whole.best)
    assert result.state.keys() == whole.state.keys()
    for name, value in whole.state.items():
        torch.testing.assert_close(result.state[name], value, rtol=0, atol=0)


def _resumed(run, path, *stops):
    file = Checkpoint(path, "this fit")
    for steps in stops:
        with pytest.raises(_Stop):
            run(_StopsAfter(steps), file)
        assert path.exists()
    counts = _Counts()
    result = run(counts, file)
    assert counts.done == counts.total
    over = _Counts()
    _same(run(over, file), result)
    assert (over.steps, over.done) == (0, over.total), "killed before the result was saved"
    return result, counts.steps


# 3 epochs of 4 steps; dev is looked at after the second and the last.
@pytest.mark.few(3)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("stops", "left"), [([6], 8), ([9, 3], 4)])
def test_a_stopped_fit_continues_bit_for_bit(kind, stops, left, tmp_path):
    settings = {"batch_size": 128, "max_epochs": 3, "evaluate_every": 2}
    config = _config(kind, optimizer="adamw", **settings)

    def run(progress, checkpoint=None):
        return fit_pairs(config, LATENTS, TRAIN, DEV, None, progress, checkpoint=checkpoint)

    result, steps = _resumed(run, tmp_path / "c", *stops)
    assert steps == left, "only the epochs that were not complete are trained"
    _same(result, run(SilentProgress()))


def test_a_stopped_fit_keeps_what_it_noted_of_test(tmp_path):
    config = _config("siamese", batch_size=128, max_epochs=4, evaluate_every=1)

    def run(progress, checkpoint=None):
        return fit_pairs(
            config, LATENTS, TRAIN, DEV, None, progress, checkpoint=checkpoint, test=TEST
        )

    result, _ = _resumed(run, tmp_path / "c", 6)
    whole = run(SilentProgress())
    assert len(whole.test_by_epoch) == 4
    assert result.test_by_epoch == whole.test_by_epoch
    _same(result, whole)


def test_a_fit_from_pretrained_encoders_continues(tmp_path):
    autoencoders = _autoencoders()
    config = _config("unified", batch_size=128, max_epochs=3)

    def run(progress, checkpoint=None):
        return fit_pairs(config, LATENTS, TRAIN, DEV, autoencoders, progress, checkpoint=checkpoint)

    result, _ = _resumed(run, tmp_path / "c", 6)
    _same(result, run(SilentProgress()))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_stopped_pretraining_continues_bit_for_bit(dropout, tmp_path):
    """Every layer keeps its own best epoch and its own moments."""
    sizes = EncoderSizes(early=3, late=5, dropout=dropout)
    config = AutoencoderConfig(encoders=sizes, batch_size=16, max_epochs=4, seed=4, lr=3e-2)
    latents = make_latents(60)[0]

    def run(progress, checkpoint=None):
        return pretrain(config, latents, progress, checkpoint=checkpoint)

    whole = run(SilentProgress())
    n_steps = len(whole.log) // 4
    result, steps = _resumed(run, tmp_path / "c", 2 * n_steps + 1, n_steps + 1)
    assert steps == n_steps
    _same(result, whole)


def test_the_checkpoint_of_another_fit_is_not_taken_and_a_damaged_one_is_named(tmp_path):
    config, path = _config("cosine_mlp", batch_size=128, max_epochs=3), tmp_path / "c"

    def run(progress, checkpoint):
        return fit_pairs(config, LATENTS, TRAIN, DEV, None, progress, checkpoint=checkpoint)

    with pytest.raises(_Stop):
        run(_StopsAfter(6), Checkpoint(path, "another fit"))
    written = path.read_bytes()
    path.write_bytes(written[:-1])
    with pytest.raises(CorruptDataError, match=r"is damaged.*delete it"):
        run(SilentProgress(), Checkpoint(path, "another fit"))
    path.write_bytes(written)
    _, steps = _resumed(run, path)
    assert steps == 12
