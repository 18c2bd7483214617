import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from stages.fit import FitConfig, OptimConfig, fit
from stages.heads import GlotHead, MaxHead, MeanHead, ScorerHead
from stages.score import ScoreConfig, score
from storage.errors import InputError
from storage.progress import SilentProgress
from storage.readers import InMemoryReader
from tests.stages.synthetic_fit import make_data


def _trained(head=None, data=None, **settings):
    config = FitConfig(
        head=ScorerHead(hidden=8) if head is None else head,
        seed=1,
        optim=OptimConfig(lr=2e-2, batch_size=16, max_epochs=4),
        **settings,
    )
    return fit(config, make_data() if data is None else data, SilentProgress())


def test_metrics_and_predictions_say_the_same(tmp_path):
    data = make_data()
    result = _trained(data=data, grid={"head.hidden": (4, 8)})
    score(ScoreConfig(), result.head(), data).save(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    table = pq.read_table(tmp_path / "predictions.parquet")
    assert table.column_names == ["split", "text", "label", "prediction", "score"]
    rows = table.to_pylist()
    for name in ("dev", "test"):
        mine = [row for row in rows if row["split"] == name]
        assert metrics[name] == np.mean([row["label"] == row["prediction"] for row in mine])
        assert metrics[f"n_{name}"] == len(mine) == 40
        assert sorted(row["text"] for row in mine) == sorted(data.split(name).texts)
    assert metrics["dev"] == result.best.dev_metric
    assert metrics["metric"] == "accuracy"
    test = np.array([row["label"] for row in rows if row["split"] == "test"])
    assert metrics["majority"] == max(np.mean(test == 0), np.mean(test == 1))
    assert metrics["choice"]["head.hidden"] == result.head().config.head.hidden
    assert metrics["choice"]["epoch"] == result.best.epoch
    assert metrics["n_parameters"] == result.head().n_parameters
    assert all((row["score"] > 0.5) == (row["prediction"] == 1) for row in rows)


def test_scores_are_the_probabilities_of_class_one():
    data = make_data()
    head = _trained(data=data).head()
    table = score(ScoreConfig(batch_size=7), head, data).predictions
    texts = table["text"].to_numpy()
    rows = data.readers["hidden/6"].features.take(texts)
    logits = head.logits(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)).numpy()
    expected = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    np.testing.assert_allclose(table["score"].to_numpy(), expected, rtol=1e-5)


def test_more_than_two_classes_have_predictions_but_no_score():
    data = make_data(classes=3)
    table = score(ScoreConfig(), _trained(data=data).head(), data).predictions
    assert table["score"].null_count == len(table)
    assert set(table["prediction"].to_pylist()) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("head", [MeanHead(), ScorerHead(hidden=8), GlotHead(hidden=8, tau=0.4)])
def test_token_weights_cover_the_first_test_texts_and_sum_to_one(head, tmp_path):
    data = make_data()
    score(ScoreConfig(n_weight_texts=5), _trained(head, data).head(), data).save(tmp_path)
    rows = pq.read_table(tmp_path / "token_weights.parquet").to_pylist()
    assert [row["text"] for row in rows] == data.split("test").texts[:5].tolist()
    for row in rows:
        assert row["digest"] == data.digests[row["text"]]
        assert len(row["weights"]) == data.readers["hidden/6"].lengths[row["text"]]
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-5)


def test_a_head_without_weights_writes_no_weight_file(tmp_path):
    data = make_data()
    head = _trained(MaxHead(), data).head()
    score(ScoreConfig(), head, data).save(tmp_path)
    assert not (tmp_path / "token_weights.parquet").exists()
    assert (
        score(ScoreConfig(n_weight_texts=0), _trained(data=data).head(), data).token_weights is None
    )


def test_shuffled_training_labels_are_scored_against_the_true_ones():
    data = make_data(n_dev=100, n_test=100)
    head = _trained(data=data, labels="shuffled").head()
    table = score(ScoreConfig(), head, data).predictions
    truth = dict(
        zip(data.examples["text"].to_pylist(), data.examples["label"].to_pylist(), strict=True)
    )
    assert all(truth[row["text"]] == row["label"] for row in table.to_pylist())


def test_features_or_classes_of_something_else_are_refused():
    data = make_data()
    head = _trained(data=data).head()
    rows = data.readers["hidden/6"].features
    narrow = InMemoryReader("hidden/6", replace(rows, data=rows.data[:, :6]))
    with pytest.raises(InputError, match="12 wide, hidden/6 is 6 wide"):
        score(ScoreConfig(), head, replace(data, readers={"hidden/6": narrow}))
    with pytest.raises(InputError, match="class 0, class 1, the corpus has no, yes"):
        score(ScoreConfig(), head, replace(data, label_names=("no", "yes")))
    untested = data.examples.filter(np.array(data.examples["split"].to_pylist()) != "test")
    with pytest.raises(InputError, match="no test examples"):
        score(ScoreConfig(), head, replace(data, examples=untested))
