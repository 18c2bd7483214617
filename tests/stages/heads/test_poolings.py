import numpy as np
import pytest
import torch

from permafrost.stages.heads import FirstHead, LastHead, MaxHead, MeanHead
from permafrost.stages.heads.ragged_sums import softmax
from tests.stages.heads.batches import make_batch

LENGTHS = [3, 1, 7, 2]


@pytest.mark.parametrize(
    ("config", "pool"),
    [
        (FirstHead(), lambda rows: rows[0]),
        (LastHead(), lambda rows: rows[-1]),
        (MeanHead(), lambda rows: rows.mean(axis=0)),
        (MaxHead(), lambda rows: rows.max(axis=0)),
    ],
    ids=["first", "last", "mean", "max"],
)
def test_poolings_equal_numpy_per_text(config, pool, draw):
    tokens, offsets = make_batch(LENGTHS, 5)
    head = config.build(5, draw)
    expected = np.stack([pool(rows) for rows in np.split(tokens.numpy(), offsets[1:-1].numpy())])
    np.testing.assert_allclose(head(tokens, offsets).numpy(), expected, rtol=1e-12)
    assert head.d_out == 5
    assert head.n_parameters == 0


def test_weights_are_one_hot_uniform_and_absent(draw):
    tokens, offsets = make_batch([2, 1, 4], 3)
    first = FirstHead().build(3, draw).token_weights(tokens, offsets)
    last = LastHead().build(3, draw).token_weights(tokens, offsets)
    mean = MeanHead().build(3, draw).token_weights(tokens, offsets)
    assert first is not None
    assert first.tolist() == [1, 0, 1, 1, 0, 0, 0]
    assert last is not None
    assert last.tolist() == [0, 1, 1, 0, 0, 0, 1]
    assert mean is not None
    assert mean.tolist() == [0.5, 0.5, 1, 0.25, 0.25, 0.25, 0.25]
    assert MaxHead().build(3, draw).token_weights(tokens, offsets) is None


def test_softmax_inside_texts_equals_torch_and_survives_large_scores():
    scores = torch.tensor([1e4, 1e4 - 1, 5.0, -1e4, 0.0, 2.0])
    offsets = torch.tensor([0, 2, 3, 6])
    expected = torch.cat([part.softmax(0) for part in scores.split([2, 1, 3])])
    torch.testing.assert_close(softmax(scores, offsets), expected)


def test_gradients_reach_the_tokens_of_every_pooling(draw):
    for config in (FirstHead(), LastHead(), MeanHead(), MaxHead()):
        tokens, offsets = make_batch(LENGTHS, 5)
        tokens.requires_grad_()
        head = config.build(5, draw)
        assert torch.autograd.gradcheck(lambda x, h=head: h(x, offsets), (tokens,))  # noqa: B023
