import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.fit.trainer import shuffled_batches
from permafrost.stages.freeze import (
    AutoencoderConfig,
    EncoderSizes,
    LayerAutoencoders,
    load_autoencoders,
    read_latents,
)
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, PermafrostError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.freeze.layer_reference import generator, single_autoencoders
from tests.stages.freeze.planted_pairs import D_MODEL, N_LAYERS, make_latents


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _config(**settings):
    sizes = EncoderSizes(early=3, late=5, dropout=settings.pop("dropout", 0.0))
    given = {"batch_size": 16, "max_epochs": 3, "dev_share": 0.2, "seed": 4, "lr": 1e-2}
    return AutoencoderConfig(encoders=sizes, **(given | settings))


def _pretrain(config, latents=None):
    return pretrain(config, make_latents(60)[0] if latents is None else latents, SilentProgress())


def _dev_texts(config, n):
    """The held-out texts, told by the changes that leave training as it was."""
    order = np.random.default_rng([config.seed, 1 << 32]).permutation(n)
    return np.sort(order[: round(config.dev_share * n)])


def test_training_is_that_of_one_adamw_per_autoencoder_with_its_own_rate():
    config = _config(max_epochs=1)
    latents, _ = make_latents(60)
    result = _pretrain(config, latents)
    held = _dev_texts(config, 60)
    train = np.setdiff1d(np.arange(60), held)
    start = LayerAutoencoders(config.encoders, N_LAYERS, D_MODEL, generator(config.seed))
    finished = single_autoencoders(result.autoencoders())
    for layer, (encode, decode) in enumerate(single_autoencoders(start)):
        model = torch.nn.Sequential(encode, decode)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-2 * (1 + layer / N_LAYERS), weight_decay=0.01
        )
        losses = []
        for batch in shuffled_batches(len(train), 16, config.seed, 1):
            x = torch.from_numpy(latents[train[batch], layer])
            loss = torch.nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(batch)))
        after = torch.nn.Sequential(*finished[layer])
        for mine, alone in zip(after.parameters(), model.parameters(), strict=True):
            # Three steps of at most 0.02; Adam divides by small numbers, which spreads rounding.
            torch.testing.assert_close(mine, alone, rtol=0, atol=1e-4)
        record = result.history[layer]
        mean = sum(loss * n for loss, n in losses) / len(train)
        assert record.train_mse == pytest.approx(mean, rel=1e-4)
        x = torch.from_numpy(latents[held, layer])
        error = torch.nn.functional.mse_loss(model(x), x).item()
        assert record.dev_mse == pytest.approx(error, rel=1e-3)


@pytest.mark.deep
def test_reconstruction_of_unseen_texts_improves():
    result = _pretrain(_config(max_epochs=30), make_latents(200)[0])
    for layer in range(N_LAYERS):
        mine = [record for record in result.history if record.layer == layer]
        assert result.best[layer].dev_mse < 0.5 * mine[0].dev_mse


def test_each_layer_keeps_its_own_best_epoch():
    config = _config(max_epochs=12, lr=0.1, dropout=0.3)
    latents, _ = make_latents(60)
    result = _pretrain(config, latents)
    assert len(result.history) == 12 * N_LAYERS
    model, held = result.autoencoders(), torch.from_numpy(latents[_dev_texts(config, 60)])
    errors = model.errors(held)
    for layer in range(N_LAYERS):
        mine = [record for record in result.history if record.layer == layer]
        best = min(mine, key=lambda record: (record.dev_mse, record.epoch))
        assert result.best[layer] == best
        # The same computation, summed in other batches.
        assert errors[layer].item() == pytest.approx(best.dev_mse, rel=1e-5)
    assert len({record.epoch for record in result.best}) > 1


def test_layers_do_not_see_one_another():
    config = _config(dropout=0.2)
    latents, _ = make_latents(60)
    changed = latents.copy()
    changed[:, 2] *= 3
    one, other = (_pretrain(config, x).autoencoders().eval() for x in (latents, changed))
    x = torch.from_numpy(latents)
    same = [torch.equal(a, b) for a, b in zip(one(x).unbind(1), other(x).unbind(1), strict=True)]
    assert same == [True, True, False, True]


def test_a_seed_gives_the_same_result_and_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    one, again, other = (_pretrain(_config(dropout=0.2, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.history == again.history
    assert one.history != other.history
    for name, value in one.state.items():
        assert torch.equal(value, again.state[name])


def test_held_out_texts_are_not_learnt():
    config = _config()
    latents, _ = make_latents(60)
    changed = latents.copy()
    changed[_dev_texts(config, 60)] += 1
    one, other = _pretrain(config, latents), _pretrain(config, changed)
    pairs = list(zip(one.history, other.history, strict=True))
    assert all(a.train_mse == b.train_mse for a, b in pairs)
    assert all(a.dev_mse != b.dev_mse for a, b in pairs)


def test_saved_autoencoders_reconstruct_the_same(tmp_path):
    result = _pretrain(_config())
    result.save(tmp_path)
    x = torch.from_numpy(make_latents(10)[0])
    loaded = load_autoencoders(tmp_path)
    assert torch.equal(loaded(x), result.autoencoders()(x))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    record = json.loads((tmp_path / "autoencoders.json").read_text())
    assert AutoencoderConfig.model_validate(record["config"]) == result.config
    assert record["n_parameters"] == loaded.n_parameters
    table = pq.read_table(tmp_path / "history.parquet")
    assert table.column("dev_mse").to_pylist() == [r.dev_mse for r in result.history]
    assert table.column("layer").to_pylist() == [r.layer for r in result.history]
    lines = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    # 48 texts in batches of 16, three times.
    assert [(line["epoch"], line["step"]) for line in lines] == [
        (str(1 + i // 3), str(i + 1)) for i in range(9)
    ]
    for epoch in (1, 2, 3):
        mine = [line for line in lines if line["epoch"] == str(epoch)]
        of_epoch = [r for r in result.history if r.epoch == epoch]
        errors = [float(line["mse"]) for line in mine]
        assert np.mean(errors) == pytest.approx(np.mean([r.train_mse for r in of_epoch]), rel=1e-6)
        assert [line["dev_mse"] for line in mine[:-1]] == ["", ""]
        held = np.mean([r.dev_mse for r in of_epoch])
        assert float(mine[-1]["dev_mse"]) == pytest.approx(held)


@pytest.mark.parametrize("scale", ["none", "vector"])
def test_unexplained_variance_is_the_share_that_is_not_reconstructed(tmp_path, scale):
    config, latents = _config(max_epochs=2, scale=scale), make_latents(60)[0]
    result = _pretrain(config, latents)
    held = latents[_dev_texts(config, 60)].astype(np.float64)
    if scale == "vector":
        held -= held.mean(axis=2, keepdims=True)
        held /= held.std(axis=2, keepdims=True)
    rebuilt = result.autoencoders()(torch.from_numpy(held.astype(np.float32))).numpy()
    errors = ((held - rebuilt) ** 2).sum(axis=(0, 2))
    expected = errors / ((held - held.mean(axis=0)) ** 2).sum(axis=(0, 2))
    # Float32, of numbers near 6.
    np.testing.assert_allclose(np.array(result.unexplained, float), expected, rtol=1e-4)
    result.save(tmp_path)
    record = json.loads((tmp_path / "autoencoders.json").read_text())
    assert record["unexplained"] == list(result.unexplained)
    assert record["dev_variance"] == list(result.dev_variance)
    one = _pretrain(_config(max_epochs=1), make_latents(2)[0])
    assert one.unexplained == (None,) * N_LAYERS, "one held-out text has no variance"


@pytest.mark.parametrize("scale", ["none", "feature"])
def test_other_texts_are_measured_after_every_epoch_and_change_nothing(tmp_path, scale):
    config = _config(scale=scale, dropout=0.1)
    latents, others = make_latents(60)[0], 3 * make_latents(25, seed=8)[0] + 1
    result = pretrain(config, latents, SilentProgress(), other_latents=others)
    plain = _pretrain(config, latents)
    assert plain.elsewhere is None
    assert plain.history == result.history
    assert all(torch.equal(result.state[name], value) for name, value in plain.state.items())
    assert result.elsewhere is not None
    train = np.setdiff1d(np.arange(60), _dev_texts(config, 60))
    mean, deviation = latents[train].mean(0), latents[train].std(0)
    scaled = others if scale == "none" else (others - mean) / deviation
    for n_epochs in (1, 2, 3):
        # A shorter training is the start of a longer one; its last epoch is looked at, not its best.
        short = pretrain(
            _config(scale=scale, dropout=0.1, max_epochs=n_epochs), latents, SilentProgress()
        )
        for layer, best in enumerate(short.best):
            if best.epoch == n_epochs:
                encode, decode = single_autoencoders(short.autoencoders())[layer]
                x = torch.from_numpy(scaled[:, layer]).float()
                error = torch.nn.functional.mse_loss(decode(encode(x)), x).item()
                assert result.elsewhere.mse[n_epochs - 1][layer] == pytest.approx(error, rel=1e-4)
    assert any(best.epoch == 3 for best in result.best), "no epoch was compared"
    np.testing.assert_allclose(result.elsewhere.variance, scaled.var(0).mean(1), rtol=1e-4)
    result.save(tmp_path)
    rows = pq.read_table(tmp_path / "elsewhere.parquet").to_pylist()
    assert [(r["epoch"], r["layer"], r["mse"]) for r in rows] == [
        (epoch, layer, error)
        for epoch, errors in enumerate(result.elsewhere.mse, start=1)
        for layer, error in enumerate(errors)
    ]
    record = json.loads((tmp_path / "autoencoders.json").read_text())
    assert record["n_elsewhere"] == 25
    assert record["unexplained_elsewhere"] == pytest.approx(
        [
            result.elsewhere.mse[best.epoch - 1][layer] / result.elsewhere.variance[layer]
            for layer, best in enumerate(result.best)
        ]
    )
    (tmp_path / "plain").mkdir()
    plain.save(tmp_path / "plain")
    assert not (tmp_path / "plain" / "elsewhere.parquet").exists()


def test_missing_and_damaged_autoencoders_are_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"autoencoders\.json is missing"):
        load_autoencoders(tmp_path)
    _pretrain(_config(max_epochs=1)).save(tmp_path)
    (tmp_path / "autoencoders.safetensors").write_bytes(b"cut off")
    with pytest.raises(CorruptDataError, match="pretrain again"):
        load_autoencoders(tmp_path)


def test_no_other_text_is_refused():
    with pytest.raises(InputError, match="there are no other texts to measure the error on"):
        pretrain(_config(), make_latents(60)[0], SilentProgress(), other_latents=make_latents(0)[0])


def test_one_text_is_refused():
    with pytest.raises(InputError, match="there are 1; give at least 2"):
        _pretrain(_config(), make_latents(1)[0])


def test_the_layer_with_numbers_that_are_not_finite_is_named():
    latents, _ = make_latents(60)
    latents[:, 3, 0] = np.inf
    with pytest.raises(PermafrostError, match=r"error of layer 3 \(from 0\) is nan at epoch 1"):
        _pretrain(_config(), latents)


# Reading latents


def _reader(layer, rows, lengths=None):
    lengths = np.ones(len(rows), np.int64) if lengths is None else lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return InMemoryReader(f"pooled/hidden_last/{layer}", Ragged(rows, offsets))


def test_latents_are_the_rows_of_every_layer_in_order():
    latents, _ = make_latents(30)
    readers = [_reader(layer, latents[:, layer]) for layer in range(N_LAYERS)]
    some = np.array([7, 3, 3, 29])
    read = read_latents([reader.subset(some) for reader in readers])
    assert np.array_equal(read, latents[some])
    half = [_reader(0, latents[:, 0].astype(np.float16))]
    assert read_latents(half).dtype == np.float32


def test_arrays_that_are_no_latents_are_refused():
    latents, _ = make_latents(6)
    with pytest.raises(InputError, match="no layers to read"):
        read_latents([])
    with pytest.raises(InputError, match=r"has 5 texts of width 12 and .* 6 of width 12"):
        read_latents([_reader(0, latents[:, 0]), _reader(1, latents[:5, 1])])
    tokens = _reader(1, latents[:, 1], np.array([1, 2, 1, 1, 1]))
    with pytest.raises(InputError, match="has 2 rows for text 1"):
        read_latents([tokens])
