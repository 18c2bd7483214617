"""Heads on a GPU against the CPU: vectors, token weights and gradients at equal weights."""

import copy

import pytest
import torch

from permafrost.stages.freeze import (
    AutoencoderConfig,
    AutoencoderSiameseHead,
    EncoderSizes,
    PairFitConfig,
)
from permafrost.stages.freeze.fit_pairs import fit_pairs
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.stages.heads import HeadConfig
from permafrost.storage.progress import SilentProgress
from tests.gpu.agreement import HEADS, LENGTHS, WIDTH, differing, outcome
from tests.gpu.devices import checked_device
from tests.stages.freeze.planted_pairs import make_latents, make_pairs
from tests.stages.heads.batches import make_batch

DEVICE = checked_device()


@pytest.mark.parametrize("config", HEADS, ids=str)
def test_a_head_gives_the_vectors_and_gradients_of_the_cpu(config: HeadConfig) -> None:
    head = config.build(WIDTH, torch.Generator().manual_seed(0))
    tokens, offsets = make_batch(LENGTHS, WIDTH, dtype=torch.float32)
    there = copy.deepcopy(head).to(DEVICE)
    ours = outcome(there, tokens.to(DEVICE), offsets.to(DEVICE))
    assert not differing(ours, outcome(head, tokens, offsets))


def test_freeze_trains_on_the_device_as_on_the_cpu() -> None:
    """Without dropout, whose masks differ between kinds of device."""
    latents, topics = make_latents(n_texts=120)
    train, dev = make_pairs(topics, range(90), 200, 1), make_pairs(topics, range(90, 120), 60, 2)
    sizes = EncoderSizes(early=6, late=8, dropout=0.0)
    config = AutoencoderConfig(encoders=sizes, max_epochs=3, batch_size=32, seed=0)
    pretrained = {d: pretrain(config, latents[:90], SilentProgress(), d) for d in (DEVICE, "cpu")}
    errors = {d: [e.dev_mse for e in found.history] for d, found in pretrained.items()}
    assert errors[DEVICE] == pytest.approx(errors["cpu"], rel=1e-3)
    head = AutoencoderSiameseHead(encoders=sizes, hidden=16, dropout=0.0)
    fitting = PairFitConfig(head=head, batch_size=32, max_epochs=3, evaluate_every=1, seed=3)
    losses = {}
    for device, found in pretrained.items():
        fitted = fit_pairs(
            fitting, latents, train, dev, found.autoencoders(), SilentProgress(), device
        )
        losses[device] = [e.train_loss for e in fitted.history]
    assert losses[DEVICE] == pytest.approx(losses["cpu"], rel=1e-2)
