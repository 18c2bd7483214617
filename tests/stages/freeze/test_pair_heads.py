import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from permafrost.stages.freeze import (
    AutoencoderSiameseHead,
    CosineMlpHead,
    EncodedHead,
    EncoderSizes,
    LayerAutoencoders,
    PairFitConfig,
    PairHeadConfig,
    SiameseHead,
    Unified,
    UnifiedHead,
    UnifiedProjectionHead,
)
from permafrost.stages.freeze.pair_heads import CosineMlp, cosines
from permafrost.storage.errors import InputError
from tests.stages.freeze.layer_reference import generator, one_siamese_encoder

SMALL, EVEN = EncoderSizes(early=3, late=5), EncoderSizes(early=4, late=4)
HEADS = {
    "cosine_mlp": CosineMlpHead(hidden=6),
    "siamese": SiameseHead(d_code=5, hidden=6),
    "autoencoder_siamese": AutoencoderSiameseHead(encoders=SMALL, hidden=6),
    "concatenate": UnifiedHead(encoders=SMALL),
    "average": UnifiedHead(encoders=EVEN, join="average"),
    "weights": UnifiedHead(encoders=EVEN, join="weights"),
    "attention": UnifiedHead(encoders=EVEN, join="attention"),
    "unified_projection": UnifiedProjectionHead(encoders=SMALL, d_embed=9),
}
UNIFIED = ["concatenate", "average", "weights", "attention", "unified_projection"]
N_LAYERS, D_MODEL = 4, 8


def _head(name, seed=0):
    return HEADS[name].build(N_LAYERS, D_MODEL, generator(seed)).eval()


def _latents(n=20, seed=1, scale=1.0):
    return scale * torch.randn(n, N_LAYERS, D_MODEL, generator=generator(seed))


# Relation 65: parameter counts of the paper


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (CosineMlpHead(), 3_329),
        (SiameseHead(), 25_241_601),
        (AutoencoderSiameseHead(), 24_606_209),
    ],
)
def test_heads_have_the_papers_parameter_counts(config, count):
    assert config.build(24, 1024, generator()).n_parameters == count


def test_the_final_head_is_smaller_than_the_siamese_one_by_the_papers_difference():
    siamese, final = (
        config.build(24, 1024, generator()).n_parameters
        for config in (SiameseHead(), AutoencoderSiameseHead())
    )
    assert siamese - final == 635_392


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (EncoderSizes(early=256, late=256), 20_267_009),
        (EncoderSizes(early=512, late=256), 24_606_209),
        (EncoderSizes(early=512, late=512), 28_945_409),
    ],
)
def test_other_widths_have_the_parameter_counts_of_the_released_notebooks(sizes, count):
    assert AutoencoderSiameseHead(encoders=sizes).build(24, 1024, generator()).n_parameters == count


def test_autoencoders_have_the_papers_parameter_count():
    model = LayerAutoencoders(EncoderSizes(), 24, 1024, generator())
    assert model.n_parameters == 48_125_952


# Relations 66 and 67: symmetry, identical texts, range


@pytest.mark.parametrize("name", HEADS)
def test_a_pair_has_the_same_similarity_in_either_order(name):
    head = _head(name)
    a, b = _latents(seed=1), _latents(seed=2)
    assert torch.equal(head(a, b), head(b, a))
    assert len(head(a, b).unique()) > 1


@pytest.mark.parametrize("name", HEADS)
def test_every_text_is_equally_similar_to_itself(name):
    head = _head(name)
    own = torch.cat([head(x, x) for x in (_latents(seed=1), _latents(seed=2, scale=50))])
    # The cosines are exactly 1; a matrix product rounds rows by their place in the batch.
    torch.testing.assert_close(own, own[:1].expand_as(own), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", UNIFIED)
def test_a_text_and_itself_have_the_unified_similarity_1(name):
    x = _latents()
    assert torch.equal(_head(name)(x, x), torch.ones(20))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_similarities_lie_between_0_and_1_and_residuals_between_minus_1_and_1(name, training):
    head = _head(name).train(training)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(20)
    a = torch.cat([_latents(seed=1), _latents(seed=2)])
    found = head(a, torch.cat([_latents(seed=3, scale=100), -a[20:]]))
    assert ((found >= 0) & (found <= 1)).all()
    for gold in (torch.zeros(40), torch.ones(40)):
        assert (found - gold).abs().max() <= 1


# Against formulas


def test_cosines_are_torchs_and_exactly_1_for_equal_vectors():
    a, b = _latents(seed=1), _latents(seed=2)
    expected = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    # Two float32 sums of eight products.
    torch.testing.assert_close(cosines(a, b), expected, rtol=0, atol=1e-6)
    assert torch.equal(cosines(a, a), torch.ones(20, N_LAYERS))
    zeros = torch.zeros(2, D_MODEL, requires_grad=True)
    similarity = cosines(zeros, a[:2, 0])
    similarity.sum().backward()
    assert torch.equal(similarity, torch.zeros(2))
    assert zeros.grad is not None
    assert zeros.grad.isfinite().all()


def test_cosine_mlp_standardises_by_one_mean_and_one_deviation():
    head = _head("cosine_mlp")
    assert isinstance(head, CosineMlp)
    a, b = _latents(seed=1), _latents(seed=2)
    raw = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    head.standardise_by(raw)
    first, _, second = head.mlp
    assert isinstance(first, torch.nn.Linear)
    assert isinstance(second, torch.nn.Linear)
    standard = (raw - raw.mean()) / raw.std()
    hidden = torch.relu(standard @ first.weight.T + first.bias)
    expected = torch.sigmoid(hidden @ second.weight.T + second.bias)[:, 0]
    # A few float32 roundings of numbers near 1.
    torch.testing.assert_close(head(a, b), expected, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="all 80 cosines of the train pairs are 1"):
        head.standardise_by(cosines(a, a))


def test_siamese_compares_the_codes_of_each_layer():
    head = _head("siamese")
    assert isinstance(head, EncodedHead)
    a, b = _latents(seed=1), _latents(seed=2)
    by_layer = []
    for layer in range(N_LAYERS):
        encode = one_siamese_encoder(head.encoders, layer)
        pair = encode(a[:, layer]), encode(b[:, layer])
        by_layer.append(torch.nn.functional.cosine_similarity(*pair, dim=-1))
    logits = head.get_submodule("mlp")(torch.stack(by_layer, dim=1))
    expected = torch.clamp(logits[:, 0] / 6 + 0.5, 0, 1)
    torch.testing.assert_close(head(a, b), expected, rtol=0, atol=1e-5)
    paper = SiameseHead(d_code=5, hidden=6, output="sigmoid").build(N_LAYERS, D_MODEL, generator())
    expected = 1 / (1 + torch.exp(-logits[:, 0]))
    torch.testing.assert_close(paper.eval()(a, b), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_codes_are_one_matrix_per_layer(name):
    head = _head(name)
    widths = {"cosine_mlp": [8] * 4, "siamese": [5] * 4}
    widths |= {name: [4] * 4 for name in ("average", "weights", "attention")}
    codes = head.codes(_latents())
    assert [tuple(code.shape) for code in codes] == [
        (20, width) for width in widths.get(name, [3, 3, 5, 5])
    ]


@pytest.mark.parametrize("name", UNIFIED)
def test_unified_similarity_is_the_cosine_of_joined_codes(name):
    head = _head(name)
    assert isinstance(head, Unified)
    a, b = _latents(seed=1), _latents(seed=2)

    def joined(x):
        codes = head.codes(x)
        if name == "concatenate":
            return torch.cat(codes, dim=1)
        if name == "average":
            return torch.stack(codes).sum(dim=0) / N_LAYERS
        if name == "weights":
            head.get_parameter("join.logits").data = torch.tensor([0.0, 1.0, 2.0, -1.0])
            weights = torch.tensor([1, math.e, math.e**2, 1 / math.e])
            parts = zip(weights / weights.sum(), codes, strict=True)
            return torch.stack([weight * code for weight, code in parts]).sum(dim=0)
        if name == "attention":
            query = head.get_parameter("join.query")
            # One text at a time; codes have width 4.
            rows = [torch.stack([code[n] for code in codes]) for n in range(len(x))]
            return torch.stack([torch.softmax(row @ query / 2, dim=0) @ row for row in rows])
        # The paper's wording: every code projected up, then the sum over layers.
        linear = head.get_submodule("join.linear")
        assert isinstance(linear, torch.nn.Linear)
        projections = linear.weight.split([3, 3, 5, 5], dim=1)
        projected = [code @ w.T for code, w in zip(codes, projections, strict=True)]
        return torch.stack(projected).sum(dim=0) + linear.bias

    by_hand = joined(a)
    torch.testing.assert_close(head.embed(a), by_hand, rtol=1e-5, atol=1e-5)
    expected = (1 + torch.nn.functional.cosine_similarity(joined(a), joined(b))) / 2
    torch.testing.assert_close(head(a, b), expected, rtol=0, atol=1e-5)


def test_the_deep_network_on_the_cosines_drops_out_while_training():
    head = _head("autoencoder_siamese")
    a, b = _latents(seed=1), _latents(seed=2)
    resting = head(a, b)
    head.train()
    assert not torch.equal(head(a, b), head(a, b))
    assert torch.equal(head.eval()(a, b), resting)


# Pretrained encoders


def test_the_deep_network_on_the_cosines_has_the_activation_of_the_encoders():
    """SiLU in both, as in the notebooks for Qwen."""
    for name, wanted, other in (("gelu", nn.GELU, nn.SiLU), ("silu", nn.SiLU, nn.GELU)):
        sizes = EncoderSizes.model_validate({"early": 4, "late": 4, "activation": name})
        head = AutoencoderSiameseHead(encoders=sizes, hidden=5).build(2, 6, generator())
        kinds = [type(module) for module in head.modules()]
        # Two blocks of every encoder, which are one group here, and three hidden layers.
        assert kinds.count(wanted) == 5
        assert other not in kinds


@pytest.mark.parametrize("name", ["autoencoder_siamese", "concatenate", "unified_projection"])
def test_pretrained_encoders_are_copied_and_trainable(name):
    head = _head(name)
    assert isinstance(head, EncodedHead)
    given = LayerAutoencoders(SMALL, N_LAYERS, D_MODEL, generator(9)).requires_grad_(False)
    head.load_encoders(given)
    copies = dict(head.encoders.named_parameters())
    for key, value in given.encoders.named_parameters():
        assert torch.equal(copies[key], value)
        assert copies[key].requires_grad
        assert copies[key].data_ptr() != value.data_ptr()


def test_encoders_of_other_sizes_are_refused():
    given = LayerAutoencoders(EVEN, N_LAYERS, D_MODEL, generator())
    for name in ("autoencoder_siamese", "siamese"):
        head = _head(name)
        assert isinstance(head, EncodedHead)
        with pytest.raises(InputError, match=r"codes of 4 layers of 4.* do not fit the head's"):
            head.load_encoders(given)


# Configs


def test_kinds_tell_the_configs_apart():
    adapter = TypeAdapter(PairHeadConfig)
    for config in HEADS.values():
        assert adapter.validate_python(config.model_dump()) == config
    with pytest.raises(ValidationError, match="hidden"):
        adapter.validate_python({"kind": "unified", "hidden": 3})


def test_codes_of_different_widths_have_no_average():
    with pytest.raises(ValidationError, match="codes of width 256 and 512 cannot be averaged"):
        UnifiedHead(join="average")


def test_what_came_later_is_not_written_at_its_default():
    before = {"early": 3, "late": 5, "dropout": 0.1}
    head = HEADS["autoencoder_siamese"].model_dump()
    assert head == {
        "kind": "autoencoder_siamese",
        "encoders": before,
        "hidden": 6,
        "n_hidden": 3,
        "dropout": 0.1,
    }
    assert HEADS["siamese"].model_dump() == {"kind": "siamese", "d_code": 5, "hidden": 6}
    assert SiameseHead(output="sigmoid").model_dump()["output"] == "sigmoid"
    fit = PairFitConfig(head=HEADS["siamese"], seed=0)
    assert "scale" not in fit.model_dump()
    assert fit.model_copy(update={"scale": "vector"}).model_dump()["scale"] == "vector"
