"""How poolings with a tuned backbone are trained: in parts, over stops, with controls, until which epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head import finetune_head
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, TunedOptim, prepared
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.stages.fit import Examples
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.stopping import Stopped, Stopping
from tests.stages.finetune.tuned_pooling_fits import (
    SILENT,
    TEXTS,
    VA,
    N,
    agree,
    config,
    data_of,
    gradients,
    live,
    trainee_of,
    tuned,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("layer", [VA, "hidden/final"])
def test_parts_have_the_gradients_of_the_whole_batch(own: Own, layer: str) -> None:
    whole = gradients(own("llama"), config(layer, SILENT))
    for optim in ({"at_a_time": 3}, {"activations": "recomputed"}):
        agree(gradients(own("llama"), config(layer, SILENT, optim=optim)), whole)
    # Of the parts by themselves the loss has fewer negatives.
    small = gradients(own("llama"), config(layer, SILENT, optim={"batch_size": 3}))
    assert any(not torch.allclose(small[n], g, rtol=1e-2) for n, g in whole.items())


def test_recomputed_blocks_draw_what_they_drew(own: Own) -> None:
    kept = gradients(own("llama"), config())
    agree(gradients(own("llama"), config(optim={"activations": "recomputed"})), kept)
    silent = gradients(own("llama"), config(train=SILENT))
    assert any(not torch.allclose(silent[n], g, rtol=1e-2) for n, g in kept.items())


def test_a_batch_that_does_not_fit_is_split(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(own("llama"), config(train=SILENT))
    asked: list[int] = []
    rows = LiveReader.rows

    def limited(self: LiveReader, texts: Any, around: Any) -> Any:
        asked.append(len(texts))
        if len(texts) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return rows(self, texts, around)

    monkeypatch.setattr(LiveReader, "rows", limited)
    agree(gradients(own("llama"), config(train=SILENT)), whole)
    n_texts = asked[0]
    assert n_texts > 10, "both texts of five pairs, and negatives"
    assert max(asked[-(n_texts // 4) :]) <= 4


@pytest.mark.deep
def test_a_recomputed_training_is_killed_and_goes_on(own: Own, tmp_path: Path) -> None:
    killed_and_resumed(own, tmp_path, config(optim={"activations": "recomputed"}))


def test_one_that_is_killed_goes_on_in_the_middle_of_an_epoch(own: Own, tmp_path: Path) -> None:
    killed_and_resumed(own, tmp_path, config(optim={"max_epochs": 1}))


@pytest.mark.deep
def test_the_seed_decides(own: Own) -> None:
    one, same, other = (tuned(own("llama"), config(seed=seed)).backbone for seed in (3, 3, 4))
    assert all(torch.equal(v, same[n]) for n, v in one.items())
    assert any(not torch.equal(v, other[n]) for n, v in one.items())


def killed_and_resumed(own: Own, folder: Path, wanted: TunedHeadConfig) -> None:
    file = folder / "fit.pt"
    expected = tuned(own("llama"), wanted)
    backbone = own("llama")
    reader = live(backbone)
    with pytest.raises(Stopped):
        # In the middle of an epoch, which has three steps.
        finetune_head(wanted, data_of(reader), reader, Stopping(2), checkpoint=file)
    assert file.exists()
    found = tuned(own("llama"), wanted, checkpoint=file)
    assert all(torch.equal(v, found.backbone[n]) for n, v in expected.backbone.items())
    assert (found.fit.log, found.n_reached) == (expected.fit.log, expected.n_reached)


def test_the_control_has_other_partners(own: Own) -> None:
    data = data_of(live(own("llama")))
    _, (train, dev) = prepared(config(), data)
    _, (mixed, mixed_dev) = prepared(config(labels="shuffled"), data)
    for before, after in ((train, mixed), (dev, mixed_dev)):
        assert np.array_equal(before.sides[0], after.sides[0])
        assert not np.array_equal(before.sides[1], after.sides[1])
        assert sorted(before.sides[1]) == sorted(after.sides[1])


def test_the_first_negatives_of_an_example_are_used(own: Own) -> None:
    examples = Examples(
        "train",
        (np.arange(4), np.arange(4)),
        np.ones(4, np.int64),
        Ragged(np.array([7, 8, 9, 5, 6]), np.array([0, 3, 3, 5, 5])),
    )
    one = examples.with_negatives(1).negatives
    assert one is not None
    assert one.data.tolist() == [7, 5]
    assert one.offsets.tolist() == [0, 1, 1, 2, 2]
    assert examples.with_negatives(None) is examples
    two = examples.with_negatives(2).negatives
    assert two is not None
    assert two.data.tolist() == [7, 8, 5, 6]
    seen = {len(batch[1].data) for batch in trainee_of(own("llama"), config()).batches(1)}
    # Two thirds of 12 pairs have a negative: 32 texts in an epoch.
    assert sum(len(b[1].data) for b in trainee_of(own("llama"), config()).batches(1)) == 32
    assert max(seen) > 10


def test_untuned_it_is_the_pooling_itself(own: Own, tmp_path: Path) -> None:
    backbone = own("llama")
    found = tuned(backbone, config(train="probe"), checkpoint=tmp_path / "fit.pt")
    assert (found.fit.best.epoch, found.n_tuned, found.fit.history) == (0, 0, ())
    rows, offsets = live(backbone).rows(np.arange(len(TEXTS)))
    vectors = np.stack(
        [part.mean(0).detach().numpy() for part in rows.split(offsets.diff().tolist())]
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked, there = vectors[12:16], vectors[N + 12 : N + 16]
    cosines = asked @ there.T
    ranks = [(row >= row[i] - 1e-6).sum() for i, row in enumerate(cosines)]
    assert found.fit.best.dev_metric == pytest.approx(np.mean(1 / np.array(ranks)))
    save_tuned_head(found, tmp_path)
    loaded = load_tuned_head(tmp_path)
    assert loaded.head.epoch == 0
    assert loaded.n_with_gradient == 0
    assert not (tmp_path / "backbone").exists()


def test_the_best_epoch_is_kept_and_training_stops_without_a_better_one(own: Own) -> None:
    found = tuned(own("llama"), config(optim={"max_epochs": 9, "patience": 1, "backbone_lr": 0.5}))
    scores = [r.dev_metric for r in found.fit.history]
    assert len(scores) < 9
    assert found.fit.best.dev_metric == max(scores)
    assert len(scores) == found.fit.best.epoch + 1


def test_the_rate_rises_over_the_warm_up_steps(own: Own) -> None:
    found = tuned(own("llama"), config(optim={"warmup_steps": 4}))
    assert [r.lr for r in found.fit.log] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    data = data_of(live(own("llama")))
    with pytest.raises(
        InputError, match=r"warmup_steps is 6, but training has at most 6 steps \(2 epochs"
    ):
        prepared(config(optim={"warmup_steps": 6}), data)
    with pytest.raises(ValueError, match=r"warmup is 0\.1 .* and warmup_steps 4; give one of them"):
        TunedOptim(warmup=0.1, warmup_steps=4)


def test_a_batch_of_one_pair_is_refused(own: Own) -> None:
    with pytest.raises(InputError, match=r"batch_size is 1, but loss contrastive tells"):
        prepared(config(optim={"batch_size": 1}), data_of(live(own("llama"))))


@pytest.mark.deep
def test_modules_have_no_hooks_left(own: Own) -> None:
    backbone = own("llama")
    tuned(backbone, config(optim={"max_epochs": 1, "activations": "recomputed"}))
    blocks: list[nn.Module] = list(backbone.family.block_list(backbone.model))
    assert all("forward" not in vars(block) for block in blocks)
