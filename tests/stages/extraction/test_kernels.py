"""Attention arithmetic against the formulas written out."""

import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction import kernels
from permafrost.stages.extraction.kernels import attention_row, softcapped_attention

TOLERANCE = 2e-6
"""float32 sums in another order."""


def written_out(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    bias: Tensor | None = None,
) -> Tensor:
    """All weights, `[B, H, Q, K]`, with keys repeated for the queries that share them."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = logits + torch.where(mask, 0.0, float("-inf"))
    return logits.softmax(-1)


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 6, 11, 5), (2, 3, 11, 5), (2, 3, 11, 7))
    query, key, value = (torch.randn(s, generator=generator) * 2 for s in shapes)
    return query, key, value


CAUSAL = torch.ones(11, 11, dtype=torch.bool).tril()
WINDOW = CAUSAL & CAUSAL.T.roll(3, 0)
PADDING = torch.arange(11) < torch.tensor([[11], [6]])


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(
    ("mask", "causal", "full"),
    [
        (None, False, None),
        (None, True, CAUSAL[None, None]),
        (PADDING[:, None, None].expand(-1, -1, 11, -1), False, PADDING[:, None, None]),
        ((WINDOW | torch.eye(11, dtype=torch.bool)).expand(2, 1, 11, 11), True, None),
    ],
)
def test_a_row_is_a_row_of_the_whole_softmax(
    inputs: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    causal: bool,
    full: Tensor | None,
    softcap: float | None,
) -> None:
    query, key, _ = inputs
    at = torch.tensor([10, 4])
    row = attention_row(query, key, mask, at, scaling=0.3, causal=causal, softcap=softcap)
    weights = written_out(query, key, mask if full is None else full, 0.3, softcap)
    for i in range(2):
        assert torch.allclose(row[i], weights[i, :, at[i]].T, atol=TOLERANCE)


@pytest.mark.parametrize("seen", [None, PADDING[:, None, None].expand(-1, -1, 11, -1)])
def test_a_row_has_the_bias_of_its_query(
    inputs: tuple[Tensor, Tensor, Tensor], seen: Tensor | None
) -> None:
    query, key, _ = inputs
    bias = torch.randn(2, 6, 11, 11, generator=torch.Generator().manual_seed(4)) * 3
    at = torch.tensor([10, 4])
    row = attention_row(query, key, seen, at, scaling=0.3, causal=False, position_bias=bias)
    weights = written_out(query, key, seen, 0.3, None, bias)
    for i in range(2):
        assert torch.allclose(row[i], weights[i, :, at[i]].T, atol=TOLERANCE)
    half = attention_row(
        query, key, seen, at, scaling=0.3, causal=False, position_bias=bias.bfloat16()
    )
    assert half.dtype == torch.float32


def test_a_row_of_half_precision_inputs_is_float32(
    inputs: tuple[Tensor, Tensor, Tensor],
) -> None:
    query, key, _ = (x.bfloat16() for x in inputs)
    at = torch.tensor([10, 4])
    row = attention_row(query, key, None, at, scaling=0.3, causal=True)
    exact = written_out(query.float(), key.float(), CAUSAL, 0.3, None)
    assert row.dtype == torch.float32
    assert torch.allclose(row[0], exact[0, :, 10].T, atol=TOLERANCE)


@pytest.mark.parametrize("chunk_elements", [1, 500, 1 << 24])
@pytest.mark.parametrize(
    ("mask", "causal", "full"),
    [
        (None, True, CAUSAL),
        (None, False, None),
        (CAUSAL.expand(2, 1, 11, 11), True, CAUSAL),
        (PADDING[:, None, None].expand(-1, -1, 11, -1), False, PADDING[:, None, None]),
    ],
)
def test_capped_attention_does_not_depend_on_its_chunks(
    inputs: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    causal: bool,
    full: Tensor | None,
    chunk_elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, key, value = inputs
    monkeypatch.setattr(kernels, "CHUNK_ELEMENTS", chunk_elements)
    output = softcapped_attention(query, key, value, mask, scaling=0.3, causal=causal, softcap=1.5)
    weights = written_out(query, key, full, 0.3, 1.5)
    expected = torch.einsum("bhqk,bhkd->bqhd", weights, value.repeat_interleave(2, dim=1))
    assert torch.allclose(output, expected, atol=TOLERANCE)


@pytest.mark.parametrize("chunk_elements", [1, 1 << 24])
@pytest.mark.parametrize("mask", [None, CAUSAL.expand(2, 1, 11, 11)])
def test_capped_attention_of_the_last_queries_sees_the_keys_before_them(
    inputs: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    chunk_elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, key, value = inputs
    monkeypatch.setattr(kernels, "CHUNK_ELEMENTS", chunk_elements)
    how = {"scaling": 0.3, "causal": True, "softcap": 1.5}
    whole = softcapped_attention(query, key, value, mask, **how)  # type: ignore[arg-type]
    last = None if mask is None else mask[:, :, -3:]
    output = softcapped_attention(query[:, :, -3:], key, value, last, **how)  # type: ignore[arg-type]
    assert torch.allclose(output, whole[:, -3:], atol=TOLERANCE)
