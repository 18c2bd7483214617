"""Encoders of every layer that are pretrained to tell the classes of pairs (FREEZE!'s notebooks, on SNLI)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.fit.trainer import shuffled_batches
from permafrost.stages.freeze import EncoderSizes, PairFitConfig
from permafrost.stages.freeze.config import ClassifierConfig
from permafrost.stages.freeze.layerwise import held_out_pairs
from permafrost.stages.freeze.pair_classifiers import (
    RECORD,
    LabelledPairs,
    LayerClassifiers,
    load_pretrained,
    pretrain_classifiers,
)
from permafrost.stages.freeze.pair_fit import new_head
from permafrost.stages.freeze.pair_heads import EncodedHead
from permafrost.stages.freeze.pretrained_layers import require_encoders
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.progress import SilentProgress
from tests.stages.freeze.layer_reference import generator
from tests.stages.freeze.planted_pairs import D_MODEL, N_LAYERS, make_latents

SIZES = EncoderSizes(early=4, late=6, dropout=0.0, middle=(2,) * N_LAYERS, inner="latent")
ARRAYS = [f"pooled/hidden_last/{layer}" for layer in range(1, N_LAYERS + 1)]


def _config(**settings) -> ClassifierConfig:
    given = {"batch_size": 16, "max_epochs": 1, "dev_share": 0.2, "seed": 4, "lr": 1e-2}
    return ClassifierConfig(encoders=SIZES, **(given | settings))


def _pairs(n_texts: int, n_pairs: int) -> tuple[np.ndarray, LabelledPairs]:
    """Three classes, by the difference of two topics."""
    latents, topics = make_latents(n_texts)
    texts = np.random.default_rng(5).integers(0, n_texts, (n_pairs, 2))
    gaps = topics[texts[:, 0], 0] - topics[texts[:, 1], 0]
    labels = np.digitize(gaps, np.quantile(gaps, [1 / 3, 2 / 3]))
    return latents, LabelledPairs(texts, labels.astype(np.int64), 3)


def test_encoders_have_the_widths_of_the_notebooks():
    """1,024, 1,024, 1,024, 512, and 3 x 512 to 3 x 512 to 3; weights of Xavier's bound, halved."""
    sizes = EncoderSizes(early=512, late=512, middle=(2,), inner="latent")
    model = LayerClassifiers(sizes, 1, 1024, 3, generator())
    shapes = [tuple(p.shape[1:]) for p in model.parameters() if p.ndim == 3 and p.shape[1] > 1]
    assert shapes == [(1024, 1024), (1024, 1024), (1024, 512), (1536, 1536), (1536, 3)]
    last = [p for p in model.parameters() if p.ndim == 3 and p.shape[1] > 1][-1]
    bound = 0.5 * np.sqrt(6 / (1536 + 3))
    assert 0.99 * bound < last.abs().max().item() <= bound


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_a_layer_alone_has_the_same_logits(activation: str):
    """[u ; v ; u - v] of one layer's codes, and its own perceptron."""
    sizes = EncoderSizes.model_validate({**SIZES.model_dump(), "activation": activation})
    model = LayerClassifiers(sizes, N_LAYERS, D_MODEL, 3, generator()).eval()
    a, b = torch.randn(2, 5, N_LAYERS, D_MODEL, generator=generator(1))
    logits = model(a, b)
    codes = [[c for group in model.encoders(x) for c in group.unbind()] for x in (a, b)]
    groups = zip(model.perceptrons.networks, model.perceptrons.sizes, strict=True)
    rows = [(network, i) for network, n in groups for i in range(n)]
    bend = torch.nn.functional.gelu if activation == "gelu" else torch.nn.functional.silu
    for layer, (network, row) in enumerate(rows):
        u, v = codes[0][layer], codes[1][layer]
        first, last = network[0], network[2]
        hidden = bend(torch.cat([u, v, u - v], 1) @ first.weight[row] + first.bias[row])
        expected = hidden @ last.weight[row] + last.bias[row]
        assert torch.allclose(logits[layer], expected, atol=1e-5)
    some = model.of_layers([1, 3]).eval()
    assert torch.allclose(some(a[:, [1, 3]], b[:, [1, 3]]), logits[[1, 3]], atol=1e-6)


def test_held_out_pairs_share_no_text_with_those_trained_on():
    """Premises have three hypotheses each, some of which are those of other premises, as in SNLI."""
    draw = np.random.default_rng(0)
    premises = np.repeat(np.arange(100), 3)
    common = draw.random(300) < 0.1
    hypotheses = np.where(common, 1000 + draw.integers(0, 5, 300), 2000 + np.arange(300))
    pairs = np.stack([premises, hypotheses], axis=1)
    train, dev = held_out_pairs(pairs, 0.1, 7)
    assert 30 <= len(dev) <= 32, "a tenth, of whole premises"
    assert not np.isin(pairs[train], pairs[dev]).any()
    assert all(np.isin(np.flatnonzero(premises == p), dev).all() for p in premises[dev])
    left_out = np.setdiff1d(np.arange(300), np.concatenate([train, dev]))
    assert len(left_out) < 40
    assert np.isin(pairs[left_out], pairs[dev]).any(axis=1).all()
    assert not np.array_equal(held_out_pairs(pairs, 0.1, 8)[1], dev), "another seed, other premises"


def test_pairs_that_all_share_a_text_are_refused():
    pairs = np.stack([np.arange(20), np.full(20, 99)], axis=1)
    with pytest.raises(
        InputError, match="each of the 20 train pairs shares a text with the 1 that"
    ):
        held_out_pairs(pairs, 0.05, 0)


def test_training_is_that_of_every_layer_alone():
    """Logits of a layer's own model, trained with an AdamW of its own on the same batches."""
    latents, pairs = _pairs(60, 80)
    config = _config()
    result = pretrain_classifiers(config, latents, pairs, SilentProgress())
    train, _ = held_out_pairs(pairs.pairs, config.dev_share, config.seed)
    for layer in range(N_LAYERS):
        whole = LayerClassifiers(SIZES, N_LAYERS, D_MODEL, 3, generator(config.seed))
        alone = whole.of_layers([layer])
        rate = 1e-2 * (1 + layer / N_LAYERS)
        optimizer = torch.optim.AdamW(alone.parameters(), lr=rate, weight_decay=0.01)
        for batch in shuffled_batches(len(train), 16, config.seed, 1, 2):
            chosen = train[batch]
            a, b = (torch.from_numpy(latents[side][:, [layer]]) for side in pairs.pairs[chosen].T)
            labels = torch.from_numpy(pairs.labels[chosen])
            loss = torch.nn.functional.cross_entropy(alone(a, b)[0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mine = result.classifiers().of_layers([layer])
        for one, other in zip(mine.parameters(), alone.parameters(), strict=True):
            # Four steps of at most 0.01; Adam divides by small numbers, which spreads rounding.
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_classes_are_learnt_and_the_best_epochs_are_kept(tmp_path: Path):
    latents, pairs = _pairs(300, 600)
    result = pretrain_classifiers(_config(max_epochs=12), latents, pairs, SilentProgress())
    assert min(result.accuracy) > 0.6, "three classes"
    _, held = held_out_pairs(pairs.pairs, 0.2, 4)
    a, b = (torch.from_numpy(latents[side]) for side in pairs.pairs[held].T)
    right = result.classifiers()(a, b).argmax(-1) == torch.from_numpy(pairs.labels[held])
    assert right.float().mean(1).tolist() == pytest.approx(result.accuracy, abs=1e-6)
    result.save(tmp_path)
    loaded = load_pretrained(tmp_path)
    assert isinstance(loaded, LayerClassifiers)
    assert torch.equal(loaded(a, b), result.classifiers()(a, b))
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(CorruptDataError, match="delete the artifact and pretrain again"):
        load_pretrained(tmp_path)
    with pytest.raises(NotFoundError, match="holds no pretrained autoencoders"):
        load_pretrained(tmp_path / "nothing")


def test_a_head_starts_from_them_if_its_sizes_are_theirs():
    latents, pairs = _pairs(60, 80)
    given = pretrain_classifiers(_config(), latents, pairs, SilentProgress()).classifiers()

    def fit(sizes: EncoderSizes) -> PairFitConfig:
        head = {"kind": "autoencoder_siamese", "encoders": sizes.model_dump(), "hidden": 4}
        return PairFitConfig.model_validate({"head": head, "loss": "mse", "seed": 1})

    require_encoders(fit(SIZES), ARRAYS, _config(), ARRAYS)
    head = new_head(fit(SIZES), N_LAYERS, D_MODEL)
    assert isinstance(head, EncodedHead)
    head.load_encoders(given)
    theirs = given.encoders.state_dict()
    assert all(torch.equal(v, theirs[k]) for k, v in head.encoders.state_dict().items())
    other = SIZES.model_copy(update={"inner": "mean"})
    with pytest.raises(InputError, match="do not fit the head's"):
        require_encoders(fit(other), ARRAYS, _config(), ARRAYS)
