"""Several passes of texts of similar length, against one pass of all."""

from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from permafrost.stages.extraction.recording import Recorder
from permafrost.stages.finetune import by_length
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.by_length import passes, read_by_length
from permafrost.stages.finetune.token_place import TokenPlace
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved


def cost(lengths: list[int], bounds: tuple[int, ...], start: int) -> int:
    ordered = sorted(lengths)
    return sum((b - a) * ordered[b - 1] + start for a, b in pairwise(bounds))


@pytest.mark.parametrize("start", [0, 5, 40, 1000])
def test_no_other_division_takes_fewer_tokens(start: int) -> None:
    lengths = np.random.default_rng(start).integers(3, 60, 9).tolist()
    order, bounds = passes(np.array(lengths), start)
    assert [lengths[i] for i in order] == sorted(lengths)
    inner = range(1, len(lengths))
    every = [
        (0, *cuts, len(lengths)) for n in range(len(lengths)) for cuts in combinations(inner, n)
    ]
    found = cost(lengths, tuple(bounds), start)
    assert found == min(cost(lengths, other, start) for other in every)
    assert (len(bounds) == 2) == (start == 1000)


@pytest.mark.parametrize(
    ("family", "place"), [("bert", "first"), ("llama", "first"), ("llama", "last"), ("bert", None)]
)
def test_states_and_gradients_are_those_of_one_pass(
    pair: Callable[[str], Pair],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    place: TokenPlace | None,
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
