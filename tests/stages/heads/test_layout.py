import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from permafrost.stages.heads.layout import lay_out, plan


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.sampled_from([1, 2000, 1 << 19]))
def test_a_plan_holds_every_text_once_and_bounds_pairs_and_padding(lengths, pairs):
    lengths = np.array(lengths)
    blocks = list(plan(lengths, pairs))
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(lengths)))
    for texts in blocks:
        longest, shortest = lengths[texts].max(), lengths[texts].min()
        assert len(texts) * longest**2 <= max(pairs, longest**2)
        assert shortest >= min(longest * 3 // 4, longest - 16)


def test_slots_read_their_own_text_and_padding_its_last_token():
    lengths = [3, 20, 1, 18, 5]
    starts = np.cumsum([0, *lengths])
    layouts = list(lay_out(torch.from_numpy(starts), 1 << 17))
    seen = {}
    for layout in layouts:
        n_texts, longest = layout.shape
        padding = layout.padding
        if padding is None:
            padding = torch.zeros(n_texts, longest, dtype=torch.bool)
        rows = zip(layout.texts.tolist(), layout.source.view(n_texts, -1), padding, strict=True)
        for text, source, padded in rows:
            seen[text] = source[~padded].tolist()
            assert source[padded].unique().tolist() in ([], [starts[text + 1] - 1])
    assert seen == {
        text: list(range(starts[text], starts[text + 1])) for text in range(len(lengths))
    }
    assert any(layout.padding is not None for layout in layouts)


def test_texts_of_one_length_have_no_padding():
    (layout,) = lay_out(torch.tensor([0, 4, 8]), 1 << 17)
    assert layout.padding is None
    assert layout.shape == (2, 4)


def test_blocks_can_have_lengths_of_a_multiple_and_then_end_with_padding():
    (layout,) = lay_out(torch.tensor([0, 13, 24]), 1 << 17, multiple=8)
    assert layout.shape == (2, 16)
    assert layout.padding is not None
    assert layout.padding.sum(dim=1).tolist() == [3, 5]
    assert layout.source.view(2, 16)[:, 13:].tolist() == [[12] * 3, [23] * 3]
    (full,) = lay_out(torch.tensor([0, 16, 32]), 1 << 17, multiple=8)
    assert full.padding is None


@pytest.mark.parametrize(("length", "n_texts"), [(9, 1700), (1, 4096), (8, 4096), (100, 40)])
def test_filled_blocks_keep_the_bound_on_pairs(length, n_texts):
    offsets = torch.arange(0, length * n_texts + 1, length)
    shapes = [layout.shape for layout in lay_out(offsets, 1 << 17, multiple=8)]
    assert sum(n for n, _ in shapes) == n_texts
    assert all(n * longest**2 <= 1 << 17 for n, longest in shapes)
