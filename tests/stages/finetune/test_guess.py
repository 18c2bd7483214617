"""What scores record of an answer without knowledge: a constant one to classes, a guess among choices."""

from collections.abc import Callable

import pytest

from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_batches import ItemFeatures, RandomRows
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from tests.stages.finetune.graph_text_fits import fit, tuned
from tests.stages.finetune.tiny_graphs import config_of, pairs, questions


@pytest.mark.parametrize(
    ("corpus", "majority", "guess"),
    [(pairs, 3 / 5, None), (questions, None, (3 / 2 + 2 / 3) / 5)],
    ids=["classes", "choices"],
)
def test_a_model_of_choices_is_held_against_a_guess(
    corpus: Callable[[dict[str, int]], GraphCorpus], majority: float | None, guess: float | None
) -> None:
    """Three questions of test have two choices, two have three."""
    made = corpus({"train": 4, "dev": 2, "test": 5})
    data = FinetuneData(made, ItemFeatures(RandomRows(6, 3), RandomRows(8, 4)), None)
    config = config_of(made, {"kind": "gnn_only"}, optim={"max_epochs": 1})
    metrics = score_finetuned(FinetuneScoreConfig(), tuned(fit(config, data)), data).metrics
    assert (metrics["majority"], metrics["guess"]) == (majority, pytest.approx(guess))
