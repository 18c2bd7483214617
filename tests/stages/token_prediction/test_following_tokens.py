"""Which tokens are asked for, and ranks among the vocabulary, against loops."""

import numpy as np
import pytest
import torch

from permafrost.stages.extraction.unembedding import Unembedding
from permafrost.stages.token_prediction import ranks as ranks_module
from permafrost.stages.token_prediction.ranks import reciprocal_ranks, target_ranks
from permafrost.stages.token_prediction.targets import NOWHERE, following_tokens
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged


def test_every_token_of_the_text_is_asked_of_those_before_it() -> None:
    """<s> a b c </s>, of which a b c is the text; and a text that starts the input."""
    ids = Ragged.from_arrays([np.array([0, 11, 12, 13, 2], np.int32), np.array([21, 22], np.int32)])
    found = following_tokens(ids, np.array([1, 0]), np.array([4, 2]), [1, 2, 9])
    none = NOWHERE
    assert found.tolist() == [
        [11, 12, none],
        [12, 13, none],
        [13, none, none],
        [none, none, none],
        [none, none, none],
        [22, none, none],
        [none, none, none],
    ]


def test_targets_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 12))
        ids = rng.integers(0, 99, n).astype(np.int32)
        start, end = sorted(rng.integers(0, n + 1, 2).tolist())
        offset = int(rng.integers(1, 14))
        (found,) = following_tokens(
            Ragged.from_arrays([ids]), np.array([start]), np.array([end]), [offset]
        ).T
        for t in range(n):
            is_asked = t >= start - 1 and start <= t + offset < end
            assert found[t] == (ids[t + offset] if is_asked else NOWHERE)


@pytest.mark.parametrize("at_a_time", [1, 1 << 24])
def test_ranks_are_places_in_a_sorted_list_with_ties_against(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "_SCORES_AT_A_TIME", at_a_time)
    generator = torch.Generator().manual_seed(0)
    # Whole numbers, so that scores are exact and often equal.
    rows = torch.randint(-2, 3, (40, 3), generator=generator).float()
    normed = torch.randint(-2, 3, (25, 3), generator=generator).float()
    targets = torch.randint(0, 40, (25, 2), generator=generator)
    targets[3, 1] = NOWHERE
    found = target_ranks(normed, Unembedding(rows, None), targets)
    for i in range(25):
        scores = [sum(float(a * b) for a, b in zip(normed[i], row, strict=True)) for row in rows]
        for o in range(2):
            wanted = int(targets[i, o])
            expected = 0 if wanted == NOWHERE else sum(s >= scores[wanted] for s in scores)
            assert int(found[i, o]) == expected


def test_ranks_of_long_vectors_are_those_without_a_softcap() -> None:
    """Scores beyond nine times the softcap have one logit in float32: all would be level."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 16, generator=generator)
    targets = torch.arange(40)[:, None]
    capped = Unembedding(rows, 30.0)
    assert (capped.logits(300 * rows).diagonal() == 30).all(), "the first are level"
    found = target_ranks(300 * rows, capped, targets)
    assert torch.equal(found, target_ranks(rows, Unembedding(rows, None), targets))
    assert torch.equal(capped.uncapped().logits(rows), rows @ rows.T)


def test_a_vector_without_information_ranks_last() -> None:
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    found = target_ranks(torch.zeros(2, 3), Unembedding(rows, None), torch.tensor([[1], [7]]))
    assert found.tolist() == [[40], [40]]


def test_reciprocal_ranks_end_at_the_cutoff() -> None:
    found = reciprocal_ranks(np.array([1, 2, 4, 100, 101, 5000]), 100)
    assert found.tolist() == [1.0, 0.5, 0.25, 0.01, 0.0, 0.0]


def test_scores_that_are_not_finite_are_refused() -> None:
    rows = torch.ones(4, 2)
    with pytest.raises(InputError, match="not finite"):
        target_ranks(torch.full((1, 2), float("nan")), Unembedding(rows, None), torch.tensor([[0]]))
