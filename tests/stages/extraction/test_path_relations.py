"""How outputs depend on inputs: gradients with and without rewiring, and attention as mixing matrices."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.recipes import OPENING, PLACEHOLDER, Encoded
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    DECODERS,
    ROW_TOLERANCE,
    Pairs,
    close,
    embeddings,
    encoded,
    mean_row,
    per_text,
    prepended,
    rewired_run,
)
from tests.stages.extraction.rewired_runs import HTP, INERT, NO_COPIES, REWIRED, agrees_with, run
from tests.stages.extraction.tiny_models import TEXTS, each_family


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox", "opt", "phi3"])
class TestGradients:
    """Through transformers' model with the test's copies, which captures are proved equal to."""

    def jacobian(self, both: Pair, batch: Encoded, blocks: range, at: Sequence[int]) -> Tensor:
        """`[len(at), T]`: how much each output state in `at` depends on each input embedding."""
        assert batch.copies is not None
        row = mean_row(both.reference)
        ids = batch.token_ids[0]
        inputs = embeddings(both.reference, ids, {PLACEHOLDER: row, OPENING: row}).detach()
        inputs.requires_grad_(True)
        out = rewired_run(both, inputs, batch.copies[0], blocks)
        ours = run(both.backbone, batch, HTP if blocks else INERT)
        agrees_with(ours, out.detached(), batch, 0)
        rows = []
        for j in at:
            direction = torch.linspace(-1, 1, out.final.shape[1])
            (grad,) = torch.autograd.grad(
                (out.final[j] * direction).sum(), inputs, retain_graph=True
            )
            rows.append(grad.norm(dim=1))
        return torch.stack(rows)

    def test_later_sentences_reach_earlier_tokens_only_through_placeholders(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 33."""
        both = pair(model_type)
        batch = prepended(both.backbone, TEXTS[1:2], size=8)
        ids = batch.token_ids[0]
        starts = np.flatnonzero(ids == PLACEHOLDER)
        assert len(starts) >= 3
        first = list(range(starts[0] + 1, starts[1]))
        later = [i for i in range(starts[1] + 1, len(ids)) if ids[i] >= 0]
        plain = self.jacobian(both, batch, range(0), first)
        causal = torch.arange(len(ids)) <= torch.tensor(first)[:, None]
        assert not plain[~causal].any()
        assert (plain[causal] > 0).all()
        rewired = self.jacobian(both, batch, REWIRED, first)
        assert (rewired[:, later] > 0).all()

    def test_the_gradient_of_the_mean_is_the_mean_of_the_gradients(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 32, first half; 1e-4 of the largest, as float32 sums run in another order."""
        both = pair(model_type)
        ids = encoded(both.backbone, texts=TEXTS[:1]).token_ids[0]
        inputs = embeddings(both.reference, ids, {}).detach().requires_grad_(True)
        out = rewired_run(both, inputs, NO_COPIES, range(0))
        direction = torch.linspace(-1, 1, out.final.shape[1])
        whole = torch.autograd.grad(out.final.mean(0) @ direction, inputs, retain_graph=True)[0]
        each = [torch.autograd.grad(y @ direction, inputs, retain_graph=True)[0] for y in out.final]
        assert close(whole, sum(each[1:], each[0]) / len(each), 1e-4)
        pooled = run(
            both.backbone, encoded(both.backbone, texts=TEXTS[:1]), "plain", "hidden=final@mean"
        )["pooled/hidden_mean/final"]
        assert close(pooled[0], out.final.detach().mean(0))


@pytest.mark.parametrize("model_type", each_family(DECODERS))
def test_attention_matrices_and_their_products_are_causal_and_stochastic(
    pair: Pairs, model_type: str
) -> None:
    """Relations 31 and 32: rows sum to 1, nothing above the diagonal, column means sum to 1; our rows
    are the last ones. 1e-5: float32 sums of up to 60 weights."""
    both = pair(model_type)
    batch = encoded(both.backbone)
    ours = run(both.backbone, batch, "plain", "attention_rows=all")
    for i, ids in enumerate(batch.token_ids):
        with torch.no_grad():
            theirs = rewired_run(both, embeddings(both.reference, ids, {}), NO_COPIES, range(0))
        product = torch.eye(len(ids))
        for k, weights in enumerate(theirs.attentions, start=1):
            row = per_text(ours[f"attention_rows/{k}"], batch)[i]
            assert float((row.T - weights[:, -1]).abs().max()) <= ROW_TOLERANCE
            product = weights.mean(0) @ product
            for matrix in (*weights, product):
                assert (matrix >= 0).all()
                assert not matrix.triu(1).any()
                assert torch.allclose(matrix.sum(1), torch.ones(len(ids)), atol=1e-5)
                assert float(matrix.mean(0).sum()) == pytest.approx(1.0, abs=1e-5)


def test_gradients_of_a_linear_model_are_sums_over_paths(pair: Pairs) -> None:
    """Relation 31, lemma A.2 of HTP: with states mixed as `r_l * M_l`, the derivative of output j by
    input i is the sum over all paths i <= k_1 <= ... <= j, in float64 (tolerance 1e-12)."""
    both = pair("llama")
    ids = encoded(both.backbone, texts=("ice",)).token_ids[0]
    with torch.no_grad():
        theirs = rewired_run(both, embeddings(both.reference, ids, {}), NO_COPIES, range(0))
    mixing = [a.mean(0).double() for a in theirs.attentions]
    factors = [0.5, 2.0, 1.5]
    n = len(ids)
    assert n > 1

    def outputs(states: Tensor) -> Tensor:
        for factor, matrix in zip(factors, mixing, strict=True):
            states = factor * matrix @ states
        return states

    jacobian = cast(
        Tensor,
        torch.autograd.functional.jacobian(outputs, torch.ones(n, dtype=torch.float64)),
    )
    product = mixing[2] @ mixing[1] @ mixing[0]
    for j in range(n):
        for i in range(n):
            paths = sum(
                float(mixing[0][a, i] * mixing[1][b, a] * mixing[2][j, b])
                for a in range(i, n)
                for b in range(a, j + 1)
            )
            found = float(jacobian[j, i])
            assert found == pytest.approx(0.5 * 2.0 * 1.5 * paths, abs=1e-12, rel=0)
            assert found == pytest.approx(0.5 * 2.0 * 1.5 * float(product[j, i]), abs=1e-12, rel=0)
            assert (i <= j) == (found > 0)
