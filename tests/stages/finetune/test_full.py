"""Graph-text models with the whole backbone in training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import finetune
from permafrost.stages.finetune.trained import BACKBONE, load_finetuned
from permafrost.storage.progress import SilentProgress
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs, questions, retrieval

CORPORA = {"pairs": pairs, "questions": questions, "retrieval": retrieval}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("kind", ["gt2vec", pytest.param("text_only", marks=pytest.mark.deep)])
def test_every_weight_of_an_encoder_is_trained_with_a_model_and_scored(
    own: Own, tmp_path: Path, name: str, kind: str
) -> None:
    backbone = own("bert")
    data = data_of(CORPORA[name](), backbone)
    before = {n: w.detach().clone() for n, w in backbone.model.named_parameters()}
    config = config_of(data.corpus, {"kind": kind}, train={"kind": "full"}, optim={"lr": 1e-3})
    result = finetune(config, data, SilentProgress())
    trained = dict(backbone.model.named_parameters())
    still = {n for n, w in before.items() if torch.equal(w, trained[n].detach())}
    assert not {n for n in still if "pooler" not in n}, "word embeddings too"
    assert result.n_parameters >= sum(w.numel() for w in before.values())
    result.save(tmp_path)
    assert (tmp_path / BACKBONE).is_dir()
    again = load_finetuned(tmp_path)
    fresh = data_of(CORPORA[name](), own("bert"))
    scored = score_finetuned(FinetuneScoreConfig(), again, fresh)
    assert scored.metrics["dev"] == result.best.dev_metric
    n_cases = sum(scored.metrics[f"n_{split}"] for split in ("dev", "test"))
    assert scored.predictions.num_rows == n_cases
    assert np.isfinite(scored.metrics["test"])
