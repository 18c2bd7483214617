"""Decoders that reconstruct every layer from the sum of all codes' maps up (FREEZE!, 4.3)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.stages.freeze import (
    AutoencoderConfig,
    EncoderSizes,
    PairFitConfig,
    load_autoencoders,
)
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.freeze.pair_fit import new_head
from permafrost.stages.freeze.pair_heads import Unified
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.stages.freeze.pretrained_layers import require_encoders
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.freeze.layer_reference import generator
from tests.stages.freeze.planted_pairs import D_MODEL, N_LAYERS, make_latents

QUIET = SilentProgress()
SIZES = EncoderSizes(early=3, late=5, dropout=0.0)
WIDTH = 7
ARRAYS = [f"pooled/hidden_last/{layer}" for layer in range(1, N_LAYERS + 1)]


def _config(**settings) -> AutoencoderConfig:
    given = {"batch_size": 16, "max_epochs": 3, "dev_share": 0.2, "seed": 4, "lr": 1e-2}
    return AutoencoderConfig(encoders=SIZES, joined=WIDTH, **(given | settings))


def _fit(kind: str, **fields) -> PairFitConfig:
    head = {"kind": kind, "encoders": SIZES.model_dump(), **fields}
    return PairFitConfig.model_validate({"head": head, "loss": "mse", "seed": 1})


def test_every_decoder_reads_the_sum_of_all_codes_maps_up():
    """Written out, layer by layer: sums of W_l c_l, and each layer's decoder on the sum."""
    model = LayerAutoencoders(SIZES, N_LAYERS, D_MODEL, generator(1), joined=WIDTH).eval()
    x = torch.randn(4, N_LAYERS, D_MODEL, generator=generator(2))
    assert model.up is not None
    codes = [code for group in model.encoders(x) for code in group.unbind()]
    maps = model.up.linear.weight.split([code.shape[1] for code in codes], dim=1)
    total = model.up.linear.bias + sum(c @ m.T for c, m in zip(codes, maps, strict=True))
    expected: list[torch.Tensor] = []
    for size, network in zip(model.decoders.sizes, model.decoders.networks, strict=True):
        expected += network(total.expand(size, -1, -1)).unbind()
    found = model(x)
    assert torch.allclose(found, torch.stack(expected, dim=1), atol=1e-6)
    errors = (found - x).square().mean(dim=(0, 2))
    assert torch.allclose(model.errors(x), errors, atol=1e-6)
    moved = x.clone()
    moved[:, 0] += 1
    assert not torch.allclose(model(moved)[:, -1], found[:, -1]), "layers share the sum"


def test_it_is_trained_as_one_and_kept_at_one_epoch(tmp_path: Path):
    latents, _ = make_latents(60)
    result = pretrain(_config(max_epochs=6), latents, QUIET)
    assert len({best.epoch for best in result.best}) == 1
    by_epoch: dict[int, list[float]] = {}
    for epoch in result.history:
        by_epoch.setdefault(epoch.epoch, []).append(epoch.dev_mse)
    means = {epoch: float(np.mean(errors)) for epoch, errors in by_epoch.items()}
    assert result.best[0].epoch == min(means, key=lambda epoch: means[epoch])
    assert means[6] < means[1]
    result.save(tmp_path)
    loaded, kept = load_autoencoders(tmp_path), result.autoencoders()
    x = torch.from_numpy(latents[:5])
    assert torch.equal(loaded(x), kept(x))
    order = np.random.default_rng([4, 1 << 32]).permutation(60)
    held = torch.from_numpy(latents[np.sort(order[:12])])
    errors = [best.dev_mse for best in result.best]
    assert kept.errors(held).tolist() == pytest.approx(errors, rel=1e-5)


def test_a_killed_pretraining_goes_on_with_its_errors(tmp_path: Path):
    latents, _ = make_latents(60)
    whole = pretrain(_config(), latents, QUIET)

    class Killed(SilentProgress):
        n = 0

        def advance(self, n: int, note: str = "") -> None:
            self.n += 1
            if self.n > 8:
                raise KeyboardInterrupt

    file = Checkpoint(tmp_path / "checkpoint", "key", 0)
    with pytest.raises(KeyboardInterrupt):
        pretrain(_config(), latents, Killed(), checkpoint=file)
    again = pretrain(_config(), latents, QUIET, checkpoint=Checkpoint(file.path, "key", 0))
    assert again.history == whole.history
    assert all(torch.equal(again.state[name], whole.state[name]) for name in whole.state)


def test_a_head_takes_the_maps_up_with_the_encoders():
    given = LayerAutoencoders(SIZES, N_LAYERS, D_MODEL, generator(9), joined=WIDTH)
    x = torch.randn(3, N_LAYERS, D_MODEL, generator=generator(3))
    head = new_head(_fit("unified_projection", d_embed=WIDTH), N_LAYERS, D_MODEL).eval()
    assert isinstance(head, Unified)
    before = head.embed(x)
    head.load_encoders(given)
    assert given.up is not None
    codes = [code for group in given.eval().encoders(x) for code in group.unbind()]
    assert torch.equal(head.embed(x), given.up(codes))
    assert not torch.allclose(before, head.embed(x))
    other = new_head(_fit("autoencoder_siamese", hidden=4), N_LAYERS, D_MODEL)
    other.load_encoders(given)
    theirs = given.encoders.state_dict()
    assert all(
        torch.equal(value, theirs[name.removeprefix("encoders.")])
        for name, value in other.state_dict().items()
        if name.startswith("encoders.")
    )


def test_what_does_not_fit_the_sum_is_refused():
    config = _config()
    with pytest.raises(
        InputError, match="embeddings of 6 numbers, but the pretrained decoders read a sum of 7"
    ):
        require_encoders(_fit("unified_projection", d_embed=6), ARRAYS, config, ARRAYS)
    require_encoders(_fit("unified_projection", d_embed=WIDTH), ARRAYS, config, ARRAYS)
    some = {"encoders": SIZES.of_layers([0, 1], N_LAYERS).model_dump()}
    fewer = _fit("autoencoder_siamese", hidden=4, **some)
    with pytest.raises(InputError, match=f"reads 2 of the {N_LAYERS} layers whose sum"):
        require_encoders(fewer, ARRAYS[:2], config, ARRAYS)
