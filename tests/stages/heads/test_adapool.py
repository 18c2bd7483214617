import pytest
import torch

from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.heads import AdaPoolHead
from permafrost.stages.heads.graph import token_graph
from permafrost.storage.errors import InputError
from tests.stages.heads.adapool_reference import adapool
from tests.stages.heads.batches import make_batch

LENGTHS = [6, 1, 30, 3, 28]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
"""Rounding of sums of up to 30 tokens and 8 columns in another order, relative to the largest number."""
QUERIES = {
    "mean": lambda text: text.mean(dim=0),
    "first": lambda text: text[0],
    "last": lambda text: text[-1],
}


def _head(width=8, dtype=torch.float64, **settings):
    config = AdaPoolHead(**({"heads": 4} | settings))
    return config.build(width, torch.Generator().manual_seed(1)).to(dtype)


def _torchs(head, width=8, dtype=torch.float64):
    """torch's own attention with the same weights."""
    layer = torch.nn.MultiheadAttention(width, head.config.heads, bias=False, batch_first=True)
    layer.to(dtype)
    with torch.no_grad():
        layer.in_proj_weight.copy_(
            torch.cat([head.query.weight, head.key.weight, head.value.weight])
        )
        layer.out_proj.weight.copy_(head.out.weight)
    return layer


def _close(found, expected):
    atol = TOLERANCE[found.dtype] * float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def minilm_tokens():
    """States of real tokens, `[99, 384]`, of one text."""
    backbone = load_backbone(find_backbone(BackboneConfig(source="minilm")), "float32", "cpu")
    ids = torch.arange(2000, 2099)[None]
    with torch.no_grad():
        states = backbone.model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][0]
    return states.double()


SHAPES = {"single": [1, 1, 1], "short": [2, 3, 5], "long": [70, 29], "mixed": [1, 60, 2, 36]}


@pytest.mark.few(12)
@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("real", [False, True], ids=["random", "minilm"])
@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("query", ["mean", "first"])
def test_vectors_weights_and_gradients_equal_the_released_module(
    query, heads, real, lengths, minilm_tokens
):
    tokens, offsets = make_batch(lengths, 384)
    if real:
        tokens = minilm_tokens[: len(tokens)].clone()
    tokens.requires_grad_()
    head = _head(384, query=query, heads=heads)
    matrices = tuple(
        matrix.detach().requires_grad_()
        for matrix in (
            head.query.weight,
            torch.cat([head.key.weight, head.value.weight]),
            head.out.weight,
        )
    )
    theirs = [adapool(text, matrices, query, heads) for text in tokens.split(lengths)]
    expected = torch.stack([vector for vector, _ in theirs])
    found = head(tokens, offsets)
    _close(found, expected)
    shares = torch.cat([weights.mean(dim=0) for _, weights in theirs])
    _close(head.token_weights(tokens, offsets), shares)
    pull = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    of_tokens, of_queries, of_keys, of_values, of_out = torch.autograd.grad(
        found, [tokens, *head.parameters()], pull
    )
    yours = torch.autograd.grad(expected, [tokens, *matrices], pull)
    largest = max(float(gradient.abs().max()) for gradient in yours)
    mine = (of_tokens, of_queries, torch.cat([of_keys, of_values]), of_out)
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("query", QUERIES)
def test_vectors_weights_and_gradients_equal_torchs_attention_per_text(query, heads, dtype):
    tokens, offsets = make_batch(LENGTHS, 8, dtype=dtype)
    tokens.requires_grad_()
    head = _head(query=query, heads=heads, scale="head", dtype=dtype)
    layer = _torchs(head, dtype=dtype)
    vectors, shares = [], []
    for text in tokens.split(LENGTHS):
        asked = QUERIES[query](text)[None, None]
        answer, attention = layer(asked, text[None], text[None], average_attn_weights=True)
        vectors.append(answer[0, 0] if query == "mean" else answer[0, 0] + asked[0, 0])
        shares.append(attention[0, 0])
    expected = torch.stack(vectors)
    found = head(tokens, offsets)
    _close(found, expected)
    _close(head.token_weights(tokens, offsets), torch.cat(shares))
    pull = torch.linspace(-1, 1, found.numel(), dtype=dtype).view_as(found)
    mine = torch.autograd.grad(found, [tokens, *head.parameters()], pull)
    yours = torch.autograd.grad(
        expected, [tokens, layer.in_proj_weight, layer.out_proj.weight], pull
    )
    _close(mine[0], yours[0])
    _close(torch.cat(mine[1:4]), yours[1])
    _close(mine[4], yours[2])


@pytest.mark.parametrize(("scale", "under_root"), [("width", 6), ("head", 2)])
@pytest.mark.parametrize("query", QUERIES)
def test_attention_heads_of_any_width_equal_the_formula(query, scale, under_root):
    tokens, offsets = make_batch(LENGTHS, 5)
    head = _head(width=5, query=query, heads=3, d_head=2, scale=scale)
    expected = []
    for text in tokens.split(LENGTHS):
        asked = QUERIES[query](text)
        keys, values = text @ head.key.weight.t(), text @ head.value.weight.t()
        answers = []
        for one in range(3):
            columns = slice(2 * one, 2 * one + 2)
            scores = keys[:, columns] @ (head.query.weight[columns] @ asked) / under_root**0.5
            answers.append(scores.softmax(dim=0) @ values[:, columns])
        answer = head.out.weight @ torch.cat(answers)
        expected.append(answer if query == "mean" else answer + asked)
    torch.testing.assert_close(head(tokens, offsets), torch.stack(expected))
    assert head.n_parameters == 4 * 5 * 3 * 2


def test_the_whole_head_passes_gradcheck_over_several_blocks(monkeypatch):
    monkeypatch.setitem(token_graph.PAIRS, "cpu", 30)
    tokens, offsets = make_batch([4, 1, 3, 5], 4)
    tokens.requires_grad_()
    head = _head(width=4, heads=2)
    variables = (tokens, *head.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: head(x, offsets), variables)


@pytest.mark.parametrize("pairs", [1, 700])
def test_block_size_changes_rounding_only(monkeypatch, pairs):
    tokens, offsets = make_batch(LENGTHS, 8)
    head = _head()
    before = head(tokens, offsets), head.token_weights(tokens, offsets)
    monkeypatch.setitem(token_graph.PAIRS, "cpu", pairs)
    for one, other in zip(
        (head(tokens, offsets), head.token_weights(tokens, offsets)), before, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("query", QUERIES)
def test_without_preference_it_is_the_projected_mean_plus_the_query_token(query):
    tokens, offsets = make_batch(LENGTHS, 8)
    head = _head(query=query)
    torch.nn.init.zeros_(head.query.weight)
    through = head.out.weight @ head.value.weight
    expected = [
        through @ text.mean(dim=0) + (0 if query == "mean" else QUERIES[query](text))
        for text in tokens.split(LENGTHS)
    ]
    torch.testing.assert_close(head(tokens, offsets), torch.stack(expected))


def test_the_source_ties_the_width_of_attention_heads_to_that_of_tokens():
    assert _head(width=64, heads=8).n_parameters == 4 * 64 * 64
    assert _head(width=64, heads=8).d_head == 8
    with pytest.raises(InputError, match="8 attention heads do not divide the tokens' width of 12"):
        AdaPoolHead().build(12, torch.Generator())
