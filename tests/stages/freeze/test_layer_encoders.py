import math

import numpy as np
import pytest
import torch

from permafrost.stages.freeze import EncoderSizes, LayerAutoencoders
from permafrost.stages.freeze.encoders import Dropout, StackedLinear, xavier_linear
from permafrost.stages.freeze.scaling import scaling
from permafrost.stages.freeze.siamese_encoders import siamese_encoders
from permafrost.storage.errors import InputError
from tests.stages.freeze.layer_reference import (
    generator,
    one_siamese_encoder,
    single_autoencoders,
)


def _close(found, expected):
    # The same float32 products, summed in another order.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("n_layers", "early", "late", "groups"),
    [(4, 3, 5, (2, 2)), (5, 3, 5, (2, 3)), (4, 3, 3, (4,)), (1, 3, 5, (1,))],
)
def test_layers_side_by_side_compute_what_each_autoencoder_computes_alone(
    n_layers, early, late, groups
):
    sizes = EncoderSizes(early=early, late=late)
    model = LayerAutoencoders(sizes, n_layers, 8, generator()).eval()
    assert model.encoders.groups.sizes == groups
    x = torch.randn(6, n_layers, 8, generator=generator(1))
    rebuilt = model(x)
    codes = [code for group in model.encoders(x) for code in group]
    errors = model.errors(x)
    for layer, (encode, decode) in enumerate(single_autoencoders(model)):
        code = encode(x[:, layer])
        assert code.shape[1] == (early if layer < n_layers // 2 else late)
        _close(codes[layer], code)
        _close(rebuilt[:, layer], decode(code))
        alone = torch.nn.functional.mse_loss(decode(code), x[:, layer])
        _close(errors[layer], alone)


def test_siamese_encoders_compute_what_each_computes_alone():
    encoders = siamese_encoders(3, 8, 5, generator())
    x = torch.randn(6, 3, 8, generator=generator(1))
    (codes,) = encoders(x)
    for layer in range(3):
        alone = one_siamese_encoder(encoders, layer)(x[:, layer])
        _close(codes[layer], alone)


def test_initial_weights_have_the_distributions_of_the_paper():
    plain = StackedLinear(3, 50, 70, generator())
    xavier = xavier_linear(3, 50, 70, generator())
    for parameter, bound in (
        (plain.weight, 1 / math.sqrt(50)),
        (plain.bias, 1 / math.sqrt(50)),
        (xavier.weight, 0.5 * math.sqrt(6 / 120)),
        (xavier.bias, 1 / math.sqrt(50)),
    ):
        # The largest of at least 210 uniform numbers; below 0.95 of the bound once in 50,000 draws.
        assert 0.95 * bound < parameter.abs().max() <= bound
    # Standard deviation of 10,500 uniform numbers: its own spread is below 1 %.
    deviation = 0.5 * math.sqrt(6 / 120) / math.sqrt(3)
    assert xavier.weight.std().item() == pytest.approx(deviation, rel=0.03)
    reference = torch.nn.init.xavier_uniform_(torch.empty(70, 50), gain=0.5, generator=generator(5))
    assert xavier.weight.std().item() == pytest.approx(reference.std().item(), rel=0.05)


def test_layers_start_from_different_weights():
    weight = xavier_linear(2, 6, 6, generator()).weight
    assert not torch.equal(weight[0], weight[1])


def test_dropout_zeroes_its_share_scales_the_rest_and_rests_in_eval():
    dropout = Dropout(0.25, generator())
    ones = torch.ones(100, 200)
    dropped = dropout(ones)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    # 20,000 coins: three standard deviations are 0.009.
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert not torch.equal(dropout(ones), dropped)
    assert torch.equal(dropout.eval()(ones), ones)
    assert torch.equal(Dropout(0.0, generator())(ones), ones)


def test_weights_and_masks_come_from_the_given_generator_alone():
    x = torch.randn(5, 4, 8, generator=generator(1))
    sizes = EncoderSizes(early=3, late=5, dropout=0.5)
    outputs = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        model = LayerAutoencoders(sizes, 4, 8, generator(7))
        outputs.append(model(x))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*outputs)
    assert not torch.equal(LayerAutoencoders(sizes, 4, 8, generator(8))(x), outputs[0])


def test_widths_and_depths_may_be_given_layer_by_layer():
    sizes = EncoderSizes(widths=(3, 3, 5, 4), middle=(1, 2, 1, 1), activation="silu", dropout=0)
    model = LayerAutoencoders(sizes, 4, 8, generator()).eval()
    assert model.encoders.groups.sizes == (1, 1, 1, 1)
    x = torch.randn(6, 4, 8, generator=generator(1))
    codes = [code for group in model.encoders(x) for code in group]
    assert [code.shape[1] for code in codes] == [3, 3, 5, 4]
    network = model.encoders.groups.networks[1]
    parameters = [p[0].detach() for p in network.parameters()]
    # From 8 to the middle width 5, again 5, then 3: weight, bias, scale and shift each.
    assert [tuple(p.shape) for p in parameters[::4]] == [(8, 5), (5, 5), (5, 3)]
    found = x[:, 1]
    for weight, bias, scale, shift in zip(*(iter(parameters),) * 4, strict=True):
        out = found @ weight + bias
        norm = torch.nn.functional.layer_norm(out, out.shape[-1:]) * scale + shift
        found = norm * torch.sigmoid(norm)
    _close(codes[1], found)
    same = EncoderSizes(widths=(3, 3, 5, 5))
    assert same.by_layer(4) == EncoderSizes(early=3, late=5).by_layer(4)
    with pytest.raises(InputError, match=r"encoders\.widths has 4 numbers for 5 layers"):
        same.by_layer(5)


@pytest.mark.parametrize("layers", [(3,), (0, 1, 3), (2, 3)])
def test_autoencoders_of_some_layers_compute_what_they_computed_among_all(layers):
    model = LayerAutoencoders(EncoderSizes(early=3, late=5), 4, 8, generator()).eval()
    some = model.of_layers(layers).eval()
    x = torch.randn(6, 4, 8, generator=generator(1))
    _close(some(x[:, layers]), model(x)[:, layers])
    assert some.encoders.n_layers == len(layers)


def test_scaled_latents_have_the_statistics_that_they_are_named_after():
    x = 5 + 3 * torch.randn(40, 2, 6, dtype=torch.float64, generator=generator())
    parts = [x[:25], x[25:]]
    found = {}
    for scale in ("none", "centred", "vector", "feature"):
        module = scaling(scale, 2, 6).double()
        module.fit(lambda: parts)
        found[scale] = module(x).numpy()
    array = x.numpy()
    own = array - array.mean(axis=2, keepdims=True)
    np.testing.assert_array_equal(found["none"], array)
    np.testing.assert_allclose(found["centred"], own, atol=1e-12)
    np.testing.assert_allclose(found["vector"], own / array.std(axis=2, keepdims=True))
    expected = (array - array.mean(axis=0)) / array.std(axis=0)
    np.testing.assert_allclose(found["feature"], expected, atol=1e-12)
