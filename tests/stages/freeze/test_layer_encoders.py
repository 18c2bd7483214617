import math

import pytest
import torch

from permafrost.stages.freeze import EncoderSizes, LayerAutoencoders
from permafrost.stages.freeze.encoders import Dropout, StackedLinear, xavier_linear
from permafrost.stages.freeze.siamese import siamese_encoders
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
