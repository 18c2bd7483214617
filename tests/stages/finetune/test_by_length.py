"""Several passes of texts of similar length, against one pass of all."""

from collections.abc import Callable
from itertools import combinations, count, pairwise
from typing import cast

import numpy as np
import pytest
import torch

from permafrost.stages.extraction.recording import Recorder
from permafrost.stages.finetune import by_length
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.by_length import COMPILED_TOKENS, passes, read_by_length
from permafrost.stages.finetune.token_place import TokenPlace
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved


def padded(n_texts: int, longest: int, multiple: int, limit: int) -> int:
    """The first length from the longest text on that makes a multiple, if the backbone takes it."""
    width = next(w for w in count(longest) if n_texts * w % multiple == 0)
    return width if width <= limit else longest


def cost(lengths: list[int], bounds: tuple[int, ...], start: int, multiple: int, limit: int) -> int:
    ordered = sorted(lengths)
    return sum(
        (b - a) * padded(b - a, ordered[b - 1], multiple, limit) + start
        for a, b in pairwise(bounds)
    )


@pytest.mark.parametrize(("multiple", "limit"), [(1, 1000), (64, 1000), (64, 60), (48, 64)])
@pytest.mark.parametrize("start", [0, 5, 40, 1000])
def test_no_other_division_takes_fewer_tokens(start: int, multiple: int, limit: int) -> None:
    lengths = np.random.default_rng(start).integers(3, 60, 9).tolist()
    found = passes(np.array(lengths), start, multiple, limit)
    assert [lengths[i] for i in found.order] == sorted(lengths)
    inner = range(1, len(lengths))
    every = [
        (0, *cuts, len(lengths)) for n in range(len(lengths)) for cuts in combinations(inner, n)
    ]
    bounds = tuple(found.bounds.tolist())
    least = min(cost(lengths, other, start, multiple, limit) for other in every)
    assert cost(lengths, bounds, start, multiple, limit) == least
    ordered = sorted(lengths)
    assert found.widths.tolist() == [
        padded(b - a, ordered[b - 1], multiple, limit) for a, b in pairwise(bounds)
    ]
    if multiple == 1:
        assert (len(bounds) == 2) == (start == 1000)


def test_in_half_precision_products_are_of_few_sizes(
    pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = pair("bert").backbone
    batch, recipe = encoded(backbone), resolved(backbone, "plain")
    tokens = torch.randn(len(batch), embedding_width(backbone))
    sizes: list[int] = []

    def noted(*given: object) -> torch.Tensor:
        z = read_states(*given)  # pyright: ignore[reportArgumentType]
        n_texts, width = len(given[1]), given[6]  # pyright: ignore[reportArgumentType]
        sizes.append(n_texts * cast(int, width))
        return z

    monkeypatch.setattr(by_length, "read_states", noted)
    for read in ("last", "mean"):
        with torch.autocast("cpu", torch.bfloat16):
            found = read_by_length(backbone, batch, recipe, read, tokens)
            whole = read_states(backbone, batch, recipe, read, tokens)
        assert close(found, whole, tolerance=0.02)
    assert sizes
    assert not any(size % COMPILED_TOKENS for size in sizes)
    sizes.clear()
    read_by_length(backbone, batch, recipe, "mean", tokens)
    assert any(size % COMPILED_TOKENS for size in sizes)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(
    ("family", "place"), [("bert", "first"), ("llama", "first"), ("llama", "last"), ("bert", None)]
)
def test_states_and_gradients_are_those_of_one_pass(
    pair: Callable[[str], Pair],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    place: TokenPlace | None,
    multiple: int,
) -> None:
    backbone = pair(family).backbone
    batch, recipe = encoded(backbone), resolved(backbone, "plain")
    draw = torch.Generator().manual_seed(0)
    shape = (len(batch), embedding_width(backbone))
    tokens = None if place is None else torch.randn(shape, generator=draw).requires_grad_(True)
    where = (tokens, place or "first")
    n_passes: list[int] = []
    record = Recorder.require_complete

    def counted(self: Recorder, model_type: str) -> None:
        n_passes.append(1)
        record(self, model_type)

    monkeypatch.setattr(Recorder, "require_complete", counted)
    monkeypatch.setitem(by_length.PASS_TOKENS, "cpu", 1)
    monkeypatch.setattr(by_length, "tokens_of_a_kind", lambda _backbone: multiple)
    for read in ("last", "mean"):
        whole = read_states(backbone, batch, recipe, read, *where)
        n_passes.clear()
        found = read_by_length(backbone, batch, recipe, read, *where)
        assert 1 < len(n_passes) <= len(batch)
        assert close(found.detach(), whole.detach())
        if tokens is not None:
            weights = torch.randn(whole.shape, generator=draw)
            one, other = (
                torch.autograd.grad((z * weights).sum(), tokens)[0] for z in (whole, found)
            )
            # What is read over the text alone does not see a token behind it.
            assert bool(one.any()) == ((place, read) != ("last", "mean"))
            assert close(other, one)
