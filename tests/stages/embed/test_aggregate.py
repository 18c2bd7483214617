"""Poolings and attention-weighted sums against loops over texts, heads and tokens."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from permafrost.stages.embed.aggregate import attention_weighted, group_means, mean_rows
from permafrost.stages.embed.aggregations.aggregation import AGGREGATIONS, PooledRows
from permafrost.storage.ragged import Ragged

assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
"""Sums of at most 12 float32 numbers near 1, added in another order."""

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def ragged(lengths: list[int], width: int, seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    return Ragged.from_arrays([rng.normal(size=(n, width)).astype(np.float32) for n in lengths])


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_poolings_equal_their_formulas(lengths: list[int], seed: int) -> None:
    rows = ragged(lengths, 5, seed)
    formulas = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        "mean": lambda x: sum(x) / len(x),
        "max": lambda x: np.array([max(column) for column in x.T]),
        "weighted_mean": lambda x: (
            sum((i + 1) * row for i, row in enumerate(x)) / sum(range(1, len(x) + 1))
        ),
    }
    for pooling, formula in formulas.items():
        aggregation = AGGREGATIONS.validate({"kind": pooling})
        assert isinstance(aggregation, PooledRows)
        found = aggregation.pool(rows)
        assert found.dtype == np.float32
        assert_close(found, [formula(x) for x in rows])


@pytest.mark.parametrize("kind", ["hs", "va"])
@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_the_first_token_is_left_out_where_there_is_another(
    kind: str, lengths: list[int], seed: int
) -> None:
    rows = ragged(lengths, 5, seed)
    skipping = AGGREGATIONS.validate({"kind": kind, "first_token": "skip"})
    assert isinstance(skipping, PooledRows)
    found = skipping.pool(rows)
    for mine, text in zip(found, rows, strict=True):
        assert_close(mine, np.mean(text[1:] if len(text) > 1 else text, axis=0))
    plain = AGGREGATIONS.validate({"kind": kind})
    assert isinstance(plain, PooledRows)
    np.testing.assert_array_equal(plain.pool(rows), mean_rows(rows))


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d_head"), [(4, 4, 3), (4, 2, 3), (6, 1, 2)])
def test_each_head_weighs_the_values_of_its_own_group(
    n_heads: int, n_kv_heads: int, d_head: int
) -> None:
    """Relation 45: n_q * d_head columns, head h reads key-value head h // (n_q / n_kv)."""
    lengths = [1, 7, 3]
    rows, values = ragged(lengths, n_heads, 0), ragged(lengths, n_kv_heads * d_head, 1)
    found = attention_weighted(rows, values, n_kv_heads)
    assert found.shape == (3, n_heads * d_head)
    for i, (row, value) in enumerate(zip(rows, values, strict=True)):
        for h in range(n_heads):
            g = h // (n_heads // n_kv_heads)
            mine = sum(row[t, h] * value[t, g * d_head : (g + 1) * d_head] for t in range(len(row)))
            assert_close(found[i, h * d_head : (h + 1) * d_head], mine)


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d_head"), [(4, 4, 3), (4, 2, 3), (6, 1, 2)])
def test_the_mean_of_a_group_is_over_the_heads_that_share_values(
    n_heads: int, n_kv_heads: int, d_head: int
) -> None:
    """As wide as the values: by group, tokens weighted by the mean of its heads' weights."""
    lengths = [1, 7, 3]
    rows, values = ragged(lengths, n_heads, 0), ragged(lengths, n_kv_heads * d_head, 1)
    found = group_means(attention_weighted(rows, values, n_kv_heads), n_heads, n_kv_heads)
    assert found.shape == (3, n_kv_heads * d_head)
    assert found.dtype == np.float32
    n_shared = n_heads // n_kv_heads
    for i, (row, value) in enumerate(zip(rows, values, strict=True)):
        for g in range(n_kv_heads):
            weights = [
                sum(row[t, g * n_shared + r] for r in range(n_shared)) for t in range(len(row))
            ]
            mine = sum(
                w / n_shared * v[g * d_head : (g + 1) * d_head]
                for w, v in zip(weights, value, strict=True)
            )
            assert_close(found[i, g * d_head : (g + 1) * d_head], mine)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_uniform_rows_give_the_mean_of_values(lengths: list[int], seed: int) -> None:
    """Relation 41, for as many key-value heads as heads; for one token the row is 1 by itself."""
    values = ragged(lengths, 8, seed)
    uniform = Ragged.from_arrays([np.full((n, 4), 1 / n, dtype=np.float32) for n in lengths])
    found = attention_weighted(uniform, values, 4)
    assert_close(found, mean_rows(values))
