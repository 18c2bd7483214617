"""Weights that are not numbers give an error, never an answer: comparisons with such a score are false."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import build_module, finetune
from permafrost.stages.finetune.trained import Finetuned
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs, questions, retrieval

pytestmark = pytest.mark.deep

Pairs = Callable[[str], Pair]
CORPORA = {"pairs": pairs, "questions": questions, "retrieval": retrieval}
GT2VEC: dict[str, object] = {"kind": "gt2vec", "description": "none"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "part", "what"),
    [
        *((name, "adapter.second", "the embedding of text and graph") for name in CORPORA),
        ("pairs", "scorers", "the score"),
        ("questions", "scorers", "the score"),
    ],
)
def test_a_model_with_broken_weights_is_not_scored(
    pair: Pairs, name: str, part: str, what: str
) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)
    config = config_of(data.corpus, GT2VEC, optim={"max_epochs": 1})
    result = finetune(config, data, SilentProgress())
    state = {
        k: torch.full_like(w, torch.nan) if k.startswith(part) else w
        for k, w in result.state.items()
    }
    facts, known = result.facts, result.relations
    whole, broken = (Finetuned(config, facts, 1, 0.5, s, known) for s in (result.state, state))
    score_finetuned(FinetuneScoreConfig(), whole, data)
    with pytest.raises(PermafrostError, match=rf"{what} is not finite for .*, the text '.*lower"):
        score_finetuned(FinetuneScoreConfig(), broken, data)


@pytest.mark.parametrize("name", CORPORA)
def test_an_epoch_whose_last_step_breaks_the_weights_is_no_epoch_to_keep(
    pair: Pairs, name: str
) -> None:
    """The loss of that step is finite, and so would accuracy on dev be, or nDCG@10."""
    data = data_of(CORPORA[name](), pair("bert").backbone)
    optim: dict[str, object] = {"lr": 1e38, "batch_size": 12, "max_epochs": 1}
    config = config_of(data.corpus, GT2VEC, optim=optim)
    plan = GraphTextTrainee(config, data, build_module(config, data), torch.device("cpu")).plan
    assert (plan.n_epochs, plan.n_steps) == (1, 1)
    with pytest.raises(PermafrostError, match=r"is not finite .*lower optim.lr \(1e\+38\)"):
        finetune(config, data, SilentProgress())


def test_one_item_with_broken_features_is_named(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    texts = data.features.texts
    assert texts is not None

    class OneBroken:
        width = texts.width

        def take(self, indices):  # type: ignore[no-untyped-def]
            found = texts.take(indices).copy()
            found[indices == 3] = float("inf")
            return found

    broken = replace(data, live=None, features=replace(data.features, texts=OneBroken()))
    config = config_of(data.corpus, {"kind": "text_only"})
    trained = GraphTextTrainee(config, broken, build_module(config, broken), torch.device("cpu"))
    trained.model.eval()
    items = torch.arange(6).numpy()
    at = data.corpus.items.column("text").to_pylist().index(3)
    text = data.corpus.texts[3]
    with pytest.raises(PermafrostError, match=rf"for 1 of 6 items, first for item {at}, .*{text}"):
        trained.embeddings(items)
