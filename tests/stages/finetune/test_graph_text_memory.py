"""Graph-text batches that do not fit in memory: in parts, split, and with activations computed again."""

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.finetune.config import Precision
from permafrost.stages.finetune.trainee import GraphTextTrainee
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.graph_text_fits import (
    CORPORA,
    GT2VEC,
    WITHOUT_DROPOUT,
    Pairs,
    gradients,
    same_direction,
    trainee,
)
from tests.stages.finetune.tiny_graphs import (
    config_of,
    data_of,
    pairs,
)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "at_a_time"), [("pairs", 3), ("questions", 1), ("retrieval", 3)])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    pair: Pairs, name: str, at_a_time: int
) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT}
    whole = gradients(trainee(config_of(data.corpus, model), data))
    parts = gradients(trainee(config_of(data.corpus, model, optim={"at_a_time": at_a_time}), data))
    assert same_direction(parts, whole)


def test_parts_draw_the_same_numbers_in_both_passes(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    config = config_of(data.corpus, GT2VEC, optim={"at_a_time": 2})
    trained = trainee(config, data)
    seen: list[Tensor] = []
    handle = trained.model.adapter.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, output: seen.append(output.detach().clone())
    )
    gradients(trained)
    handle.remove()
    assert len(seen) == 4, "two parts, twice"
    assert all(torch.equal(seen[i], seen[i + 2]) for i in range(2))
    assert not torch.equal(seen[0], seen[1])


def limited(trained: GraphTextTrainee, limit: int, error: type[RuntimeError]) -> None:
    """From now on more than `limit` items at a time do not fit."""
    whole = trained._embed

    def embed(items: np.ndarray, precision: Precision) -> object:
        found = whole(items, precision)
        if len(items) > limit:
            raise error("CUDA error: out of memory")
        return found

    trained._embed = embed  # type: ignore[method-assign,assignment]


def test_a_batch_that_does_not_fit_is_split_and_the_next_one_too(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT}
    whole = gradients(trainee(config_of(data.corpus, model), data))
    small = trainee(config_of(data.corpus, model), data)
    limited(small, 1, torch.OutOfMemoryError)
    parts = gradients(small)
    assert small.fitting.at_a_time == 1
    assert same_direction(parts, whole)
    nothing = trainee(config_of(data.corpus, model), data)
    limited(nothing, 0, torch.OutOfMemoryError)
    with pytest.raises(
        Exception, match="one text with its graph alone does not fit in the memory of cpu"
    ):
        gradients(nothing)


def test_what_is_no_lack_of_memory_is_not_tried_again(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    trained = trainee(config_of(data.corpus, GT2VEC), data)

    def broken(items: np.ndarray, precision: Precision) -> object:
        raise RuntimeError("shapes do not match")

    trained._embed = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="shapes do not match"):
        gradients(trained)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_recomputed_activations_give_the_same_gradients(pair: Pairs, family: str) -> None:
    data = data_of(pairs(), pair(family).backbone)
    kept = gradients(trainee(config_of(data.corpus, GT2VEC), data))
    forwards = [vars(b).get("forward") for b in blocks(pair(family))]
    n_calls: list[int] = []
    handle = pair(family).backbone.family.attention_module(pair(family).backbone.model, 1)
    count = handle.register_forward_hook(lambda *_: n_calls.append(1))
    again = gradients(
        trainee(config_of(data.corpus, GT2VEC, optim={"activations": "recomputed"}), data)
    )
    count.remove()
    assert len(n_calls) == 2, "once, and once more on the way back"
    assert same_direction(again, kept)
    assert [vars(b).get("forward") for b in blocks(pair(family))] == forwards, "put back"


def blocks(both: Pair) -> list[torch.nn.Module]:
    return list(both.backbone.family.block_list(both.backbone.model))
