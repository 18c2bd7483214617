"""What every head has to do, whatever it computes."""

import pytest
import torch

from permafrost.stages.heads import (
    AdaPoolHead,
    FirstHead,
    GlotHead,
    LastHead,
    MaxHead,
    MeanHead,
    MlpHead,
    ScorerHead,
)
from tests.stages.heads.batches import make_batch

LENGTHS = [14, 1, 30, 9, 30]
HEADS = [
    FirstHead(),
    LastHead(),
    MeanHead(),
    MaxHead(),
    ScorerHead(hidden=7),
    GlotHead(hidden=6, tau=0.3),
    GlotHead(hidden=6, tau=0.3, heads=3),
    GlotHead(hidden=6, tau=0.3, conv="gcn"),
    GlotHead(hidden=6, tau=0.3, conv="gin", project=4),
    GlotHead(hidden=6, tau=0.3, conv="gin_plain"),
    MlpHead(hidden=6),
    AdaPoolHead(heads=2),
    AdaPoolHead(heads=2, query="first"),
    AdaPoolHead(heads=2, query="last"),
]
each_head = pytest.mark.parametrize(
    "config", HEADS, ids=lambda config: config.model_dump_json(exclude_defaults=True)
)


def _head(config):
    """A trained head in use: batch normalisation has seen tokens and takes its running statistics."""
    head = config.build(8, torch.Generator().manual_seed(1)).double()
    for seed in (10, 11):
        head(*make_batch(LENGTHS, 8, seed=seed))
    return head.eval()


@each_head
def test_a_batch_equals_its_texts_one_by_one(config):
    tokens, offsets = make_batch(LENGTHS, 8)
    head = _head(config)
    single = [head(text, torch.tensor([0, len(text)])) for text in tokens.split(LENGTHS)]
    torch.testing.assert_close(head(tokens, offsets), torch.cat(single))
    assert single[0].shape == (1, head.d_out)


@each_head
def test_a_text_does_not_depend_on_what_else_is_in_the_batch(config):
    tokens, offsets = make_batch(LENGTHS, 8)
    head = _head(config)
    before = head(tokens, offsets)
    tokens[15:45] *= -1e3  # text 2, with which texts 0, 3 and 4 share blocks
    after = head(tokens, offsets)
    others = [0, 1, 3, 4]
    assert torch.equal(before[others], after[others])
    assert not torch.allclose(before[2], after[2])


@each_head
def test_weights_are_shares_that_sum_to_one_per_text(config):
    tokens, offsets = make_batch(LENGTHS, 8)
    weights = _head(config).token_weights(tokens, offsets)
    if config.kind == "max":
        assert weights is None
        return
    assert (weights >= 0).all()
    sums = torch.stack([part.sum() for part in weights.split(LENGTHS)])
    torch.testing.assert_close(sums, torch.ones_like(sums))


@each_head
def test_order_matters_only_where_a_position_is_named(config):
    tokens, offsets = make_batch([25], 8)
    head = _head(config)
    order = torch.arange(24, -1, -1)
    positional = config.kind in ("first", "last") or getattr(config, "query", "mean") != "mean"
    found, expected = head(tokens[order], offsets), head(tokens, offsets)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12) != positional
    weights = head.token_weights(tokens[order], offsets)
    if weights is not None and not positional:
        torch.testing.assert_close(weights, head.token_weights(tokens, offsets)[order])


@each_head
def test_gradients_reach_every_parameter_and_none_is_asked_of_the_tokens(config):
    tokens, offsets = make_batch(LENGTHS, 8)
    head = _head(config).train()
    head(tokens, offsets).square().sum().backward() if head.n_parameters else None
    assert tokens.grad is None
    assert all(parameter.grad is not None for parameter in head.parameters())


@each_head
def test_training_one_step_gives_the_same_bits_every_time(config):
    def step():
        head = config.build(8, torch.Generator().manual_seed(1))
        tokens, offsets = make_batch(LENGTHS, 8, dtype=torch.float32)
        vectors = head(tokens, offsets)
        if head.n_parameters:
            vectors.square().sum().backward()
        return [vectors, *(parameter.grad for parameter in head.parameters())]

    for one, other in zip(step(), step(), strict=True):
        assert torch.equal(one, other)
