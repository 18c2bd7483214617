import pytest
import torch
from jaxtyping import TypeCheckError
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.heads import (
    AdaPoolHead,
    GlotHead,
    HeadConfig,
    MeanHead,
    MlpHead,
    ScorerHead,
)

CONFIGS = TypeAdapter(HeadConfig)


@pytest.mark.parametrize(
    "kind", ["first", "last", "mean", "max", "scorer", "glot", "mlp", "adapool"]
)
def test_a_kind_alone_is_a_complete_config_and_survives_json(kind):
    config = CONFIGS.validate_python({"kind": kind})
    assert config.kind == kind
    assert CONFIGS.validate_json(CONFIGS.dump_json(config)) == config


def test_defaults_are_those_of_the_papers_appendix():
    head = GlotHead()
    assert (head.n_convs, head.hidden, head.tau, head.jumping) == (2, 128, 0.6, "cat")
    assert (head.conv.kind, head.heads, head.project) == ("gat", 1, None)
    assert ScorerHead().hidden == 256


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "mean", "tau": 0.3},
        {"kind": "median"},
        {"kind": "glot", "tau": float("nan")},
        {"kind": "glot", "n_convs": -1},
        {"kind": "glot", "n_convs": 0, "jumping": "max"},
        {"kind": "glot", "conv": "sage"},
        {"kind": "glot", "conv": "gcn", "heads": 2},
        {"kind": "glot", "hidden": 6, "heads": 4},
        {"kind": "glot", "project": 0},
        {"kind": "scorer", "hidden": 0},
        {"kind": "mlp", "n_layers": 0},
        {"kind": "adapool", "query": "median"},
        {"kind": "adapool", "heads": 0},
        {"kind": "adapool", "scale": "tokens"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        CONFIGS.validate_python(wrong)


@pytest.mark.parametrize(
    "config",
    [
        GlotHead(),
        GlotHead(conv="gcn", project=8),
        GlotHead(conv="gin"),
        GlotHead(conv="gin_plain"),
        ScorerHead(),
        MlpHead(),
        AdaPoolHead(),
    ],
)
def test_a_head_depends_on_its_generator_alone(config):
    torch.manual_seed(1)
    one = config.build(16, torch.Generator().manual_seed(5))
    state = torch.get_rng_state()
    torch.manual_seed(2)
    two = config.build(16, torch.Generator().manual_seed(5))
    other = config.build(16, torch.Generator().manual_seed(6))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])
        if name.endswith("weight") and value.ndim == 2:
            assert not torch.equal(value, other.state_dict()[name])


def test_shapes_are_checked_in_tests():
    with pytest.raises(TypeCheckError):
        MeanHead().build(4, torch.Generator())(torch.zeros(4), torch.tensor([0, 4]))
