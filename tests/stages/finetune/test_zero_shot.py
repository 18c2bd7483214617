"""A search by the backbone's own vectors: a row of a table for which nothing is trained."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import finetune
from permafrost.stages.finetune.trained import load_finetuned
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.tiny_graphs import config_of, data_of, retrieval

Pairs = Callable[[str], Pair]


@pytest.mark.parametrize(
    "model",
    [{"kind": "text_only"}, {"kind": "gt2vec", "description": "none", "graph_token": "none"}],
)
def test_without_graphs_a_search_is_the_ranking_by_stored_vectors(
    pair: Pairs, model: dict[str, object], tmp_path: Path
) -> None:
    data = replace(data_of(retrieval(), pair("bert").backbone), live=None)
    config = config_of(data.corpus, model)
    assert config.trains_nothing
    result = finetune(config, data, SilentProgress())
    assert (result.best.epoch, result.n_parameters, result.history) == (0, 0, ())
    result.save(tmp_path)
    again = load_finetuned(tmp_path)
    scored = score_finetuned(FinetuneScoreConfig(), again, data)
    assert scored.metrics["dev"] == result.best.dev_metric
    assert "optim.lr" not in again.choice
    corpus, texts = data.corpus, data.features.texts
    assert texts is not None
    rows = texts.take(corpus.items.column("text").to_numpy()).astype(np.float64)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for split in ("dev", "test"):
        judged = corpus.judgements.filter(pc.equal(corpus.judgements.column("split"), split))
        gains: list[float] = []
        for row in judged.to_pylist():
            cosines = units[list(corpus.documents)] @ units[row["query"]]
            rank = int((cosines > units[row["document"]] @ units[row["query"]] + 1e-12).sum())
            gains.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
        assert scored.metrics[split] == pytest.approx(float(np.mean(gains)))
    assert 0 < scored.metrics["test"] < 1
