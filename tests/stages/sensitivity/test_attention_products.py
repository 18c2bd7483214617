"""Attention weights against transformers' own, products against sums over paths, and the bound."""

from collections.abc import Callable
from itertools import product as combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.sensitivity.mixing import block_mixings, copies_before, path_sums
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    ROW_TOLERANCE,
    embeddings,
    encoded,
    mean_row,
    prepended,
    reference_run,
    resolved,
    rewired_run,
)
from tests.stages.extraction.rewired_runs import HTP, REWIRED
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS, each_family

Pairs = Callable[[str], Pair]


def stochastic(n: int, seed: int, *, n_heads: int = 1) -> np.ndarray:
    """Causal attention weights `[n_heads, n, n]`."""
    logits = np.random.default_rng(seed).normal(size=(n_heads, n, n)) * 2
    weights = np.tril(np.exp(logits))
    return weights / weights.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("model_type", each_family(FAMILIES))
def test_weights_are_transformers_own_averaged_over_heads(pair: Pairs, model_type: str) -> None:
    both = pair(model_type)
    for text in TEXTS[:2]:
        batch = encoded(both.backbone, texts=(text,))
        ours = block_mixings(both.backbone, batch, resolved(both.backbone, "plain"), N_LAYERS)
        theirs = reference_run(both, batch.token_ids[0]).attentions
        assert len(ours) == len(theirs) == N_LAYERS
        for mine, other in zip(ours, theirs, strict=True):
            assert np.abs(mine - other[0].mean(0).numpy()).max() <= ROW_TOLERANCE


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_products_are_causal_and_stochastic(pair: Pairs, model_type: str) -> None:
    """Relations 31 and 32; 1e-6 for float32 weights, summed in float64."""
    both = pair(model_type)
    batch, recipe = encoded(both.backbone, texts=TEXTS[1:2]), resolved(both.backbone, "plain")
    mixings = block_mixings(both.backbone, batch, recipe, N_LAYERS)
    for residual in (0.0, 1.0, 3.0):
        found = path_sums(mixings, [residual] * N_LAYERS, copies_before(recipe, batch, N_LAYERS))
        assert not np.triu(found, 1).any()
        assert (found >= 0).all()
        assert found.sum(axis=1) == pytest.approx(np.ones(len(found)), abs=1e-6)
        assert found.mean(axis=0).sum() == pytest.approx(1, abs=1e-6)


def test_a_product_is_the_sum_over_all_paths() -> None:
    """Lemma A.2: a path goes from i to j through one position per block, staying or attending."""
    n, residual = 4, 0.5
    blocks = [stochastic(n, seed)[0] for seed in range(3)]
    steps = [(block + residual * np.eye(n)) / (1 + residual) for block in blocks]
    found = path_sums(blocks, [residual] * 3, [None] * 3)
    for i, j in combinations(range(n), repeat=2):
        paths = sum(
            steps[0][a, i] * steps[1][b, a] * steps[2][j, b]
            for a, b in combinations(range(n), repeat=2)
        )
        assert found[j, i] == pytest.approx(paths, abs=1e-14)


def linear_model(
    embeddings_TD: Tensor, attention: list[np.ndarray], values: list[Tensor]
) -> Tensor:
    """Attention-only and linear: x <- x + sum over heads of a_h x W_h, weights held fixed."""
    x_TD = embeddings_TD
    for weights_HTT, values_HDD in zip(attention, values, strict=True):
        heads = torch.from_numpy(weights_HTT) @ x_TD @ values_HDD
        x_TD = x_TD + heads.sum(0)
    return x_TD


@pytest.mark.parametrize("is_identity", [False, True])
def test_the_bound_bounds_where_it_is_stated_for(is_identity: bool) -> None:
    """Derivatives of a linear attention-only model have spectral norms of at most r^L A, with r = 1 + H s
    for H heads of spectral norm s, and equal to it where the heads are s times the identity: A by
    `path_sums` with the residual weight 1 / (H s). In float64."""
    n, d, n_heads, size, n_blocks = 6, 5, 3, 0.7, 3
    generator = torch.Generator().manual_seed(0)
    attention = [stochastic(n, seed, n_heads=n_heads) for seed in range(n_blocks)]
    if is_identity:
        attention = [np.repeat(a.mean(0, keepdims=True), n_heads, axis=0) for a in attention]
        values = [size * torch.eye(d, dtype=torch.float64).repeat(n_heads, 1, 1)] * n_blocks
    else:
        drawn = torch.randn(n_blocks, n_heads, d, d, generator=generator, dtype=torch.float64)
        norms = torch.linalg.matrix_norm(drawn, ord=2, keepdim=True)
        values = list(size * drawn / norms)
    inputs = torch.randn(n, d, generator=generator, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(lambda x: linear_model(x, attention, values), inputs)
    assert isinstance(whole, Tensor)
    strength = n_heads * size
    sums = path_sums(
        [a.mean(axis=0) for a in attention], [1 / strength] * n_blocks, [None] * n_blocks
    )
    bound = (1 + strength) ** n_blocks * sums
    for j, i in combinations(range(n), repeat=2):
        norm = float(torch.linalg.matrix_norm(whole[j, :, i], ord=2))
        if is_identity:
            assert norm == pytest.approx(bound[j, i], abs=1e-12)
        else:
            assert norm <= bound[j, i] + 1e-12
            assert (norm == 0) == (i > j)
    mean = torch.linalg.matrix_norm(whole.mean(0).permute(1, 0, 2), ord=2).numpy()
    assert (mean <= bound.mean(axis=0) + 1e-12).all(), "appendix A.3, for the mean"


def test_copies_are_one_more_mixing(pair: Pairs) -> None:
    """Relation 33: with placeholders, later tokens reach earlier ones; rows still sum to 1. Weights are
    those that transformers' model has with the tests' own copies."""
    both = pair("llama")
    batch, recipe = prepended(both.backbone, TEXTS[1:2], size=8), resolved(both.backbone, HTP)
    assert batch.copies is not None
    row = mean_row(both.reference)
    with torch.no_grad():
        inputs = embeddings(both.reference, batch.token_ids[0], {-1: row, -2: row})
        theirs = rewired_run(both, inputs, batch.copies[0], REWIRED)
    ours = block_mixings(both.backbone, batch, recipe, N_LAYERS)
    for mine, other in zip(ours, theirs.attentions, strict=True):
        assert np.abs(mine - other.mean(0).numpy()).max() <= ROW_TOLERANCE
    copies = copies_before(recipe, batch, N_LAYERS)
    assert [pairs is not None for pairs in copies] == [k in REWIRED for k in range(N_LAYERS)]
    found = path_sums(ours, [1.0] * N_LAYERS, copies)
    n = len(found)
    expected = np.eye(n)
    for k, weights in enumerate(ours):
        copied = np.eye(n)
        for source, target in batch.copies[0].tolist() if k in REWIRED else ():
            copied[target] = np.eye(n)[source]
        expected = (weights + np.eye(n)) / 2 @ copied @ expected
    assert found == pytest.approx(expected, abs=1e-12)
    assert found.sum(axis=1) == pytest.approx(np.ones(n), abs=1e-6)
    starts = np.flatnonzero(batch.token_ids[0] == -1)
    first, last = int(starts[0]) + 1, n - 1
    assert found[first, last] > 0, "the first word takes of the last"
    plain = path_sums(ours, [1.0] * N_LAYERS, [None] * N_LAYERS)
    assert plain[first, last] == 0
