import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics
from sklearn.decomposition import PCA

from permafrost.stages.fit import FitConfig, OptimConfig, fit
from permafrost.stages.heads import GlotHead, MaxHead, MeanHead, ScorerHead
from permafrost.stages.metrics.vector_map import read_vector_map
from permafrost.stages.scoring.score import score
from permafrost.stages.scoring.scored import ScoreConfig
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import InMemoryReader
from tests.stages.synthetic_fit import (
    PAIR_TASKS,
    make_data,
    make_pairs,
    pooled_by_extraction,
    with_column,
)


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
    result = _trained(data=data)
    score(ScoreConfig(), result.head(), data).save(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    table = pq.read_table(tmp_path / "predictions.parquet")
    probabilities = [f"probability_class_{i}" for i in (0, 1)]
    assert table.column_names == [
        *("split", "text", "label", "prediction", "score", "example", "digest"),
        *("label_name", "prediction_name", *probabilities),
    ]
    rows = table.to_pylist()
    for row in rows:
        assert row["digest"] == data.digests[row["text"]]
        example = data.examples.slice(row["example"], 1).to_pylist()[0]
        assert {k: example[k] for k in ("split", "text", "label")}.items() <= row.items()
        assert row["prediction_name"] == data.label_names[int(row["prediction"])]
        assert row["label_name"] == data.label_names[int(row["label"])]
        assert row["probability_class_1"] == pytest.approx(row["score"], abs=1e-7)
        assert row["probability_class_0"] == pytest.approx(1 - row["score"], abs=1e-7)
    for name in ("dev", "test"):
        mine = [row for row in rows if row["split"] == name]
        assert metrics[name] == np.mean([row["label"] == row["prediction"] for row in mine])
        assert metrics[f"n_{name}"] == len(mine) == 40
        assert sorted(row["text"] for row in mine) == sorted(data.split(name).texts)
    assert metrics["dev"] == result.best.dev_metric
    assert metrics["metric"] == "accuracy"
    test = np.array([row["label"] for row in rows if row["split"] == "test"])
    assert metrics["majority"] == max(np.mean(test == 0), np.mean(test == 1))
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
    shares = np.stack([table[f"probability_class_{i}"].to_numpy() for i in range(3)], axis=1)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert shares.argmax(1).tolist() == table["prediction"].to_pylist()


@pytest.mark.parametrize("head", [MeanHead(), ScorerHead(hidden=8), GlotHead(hidden=8, tau=0.4)])
def test_token_weights_are_kept_of_texts_all_over_test_and_sum_to_one(head, tmp_path):
    data = make_data(n_test=21)
    config = ScoreConfig(n_weight_texts=5, batch_size=2)
    trained = _trained(head, data).head()
    score(config, trained, data).save(tmp_path)
    rows = pq.read_table(tmp_path / "token_weights.parquet").to_pylist()
    assert [row["text"] for row in rows] == data.split("test").texts[[0, 5, 10, 15, 20]].tolist()
    for row in rows:
        alone = data.readers["hidden/6"].subset(np.array([row["text"]]))
        _, features = next(alone.in_order(1))
        expected = trained.token_weights(
            torch.from_numpy(features.data), torch.from_numpy(features.offsets)
        )
        # The same weights as without a batch around the text, to rounding.
        assert row["weights"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert row["digest"] == data.digests[row["text"]]
        assert len(row["weights"]) == data.readers["hidden/6"].lengths[row["text"]]
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-5)


def test_pairs_have_the_weights_of_both_texts_kept():
    data = make_pairs("pair_classification")
    head = _trained_pairs("pair_classification", data).head()
    table = score(ScoreConfig(n_weight_texts=7), head, data).token_weights
    assert table is not None
    first, second = data.split("test").sides
    # Three pairs of 32: the first, the middle and the last one.
    expected = [t for i in (0, 16, 31) for t in (first[i], second[i])]
    assert table["text"].to_pylist() == list(dict.fromkeys(expected))


def test_a_head_without_weights_writes_no_weight_file(tmp_path):
    data = make_data()
    head = _trained(MaxHead(), data).head()
    score(ScoreConfig(), head, data).save(tmp_path)
    assert not (tmp_path / "token_weights.parquet").exists()
    assert (
        score(ScoreConfig(n_weight_texts=0), _trained(data=data).head(), data).token_weights is None
    )


@pytest.mark.parametrize("head", [MeanHead(), ScorerHead(hidden=8)])
def test_one_row_per_text_has_no_token_weights(head):
    data = make_data()
    means = pooled_by_extraction(data.readers["hidden/6"])
    data = replace(data, readers={means.array: means})
    found = score(ScoreConfig(), _trained(head, data, layer=means.array).head(), data)
    assert found.token_weights is None
    assert len(found.predictions) == 80


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


# Every metric of a task, and how test is made


def test_every_class_metric_is_recorded_and_the_balance_of_test():
    data = make_data()
    result = score(ScoreConfig(), _trained(data=data, metric="mcc").head(), data)
    for name in ("dev", "test"):
        mine = [row for row in result.predictions.to_pylist() if row["split"] == name]
        labels, guesses = ([row[k] for row in mine] for k in ("label", "prediction"))
        f1 = sklearn_metrics.f1_score(labels, guesses)
        mcc = sklearn_metrics.matthews_corrcoef(labels, guesses)
        assert result.metrics[f"{name}_f1"] == pytest.approx(f1)
        assert result.metrics[f"{name}_mcc"] == pytest.approx(mcc)
        assert result.metrics[f"{name}_accuracy"] == np.mean(np.equal(labels, guesses))
        assert result.metrics[name] == result.metrics[f"{name}_mcc"]
    ones = np.mean(data.split("test").labels)
    assert result.metrics["class_balance"] == {"class 0": 1 - ones, "class 1": ones}
    three = make_data(classes=3)
    metrics = score(ScoreConfig(), _trained(data=three).head(), three).metrics
    assert "test_f1" not in metrics
    assert sum(metrics["class_balance"].values()) == pytest.approx(1)


def _overlapping(data, n):
    """The first `n` test examples get a text that train has."""
    texts = data.examples["text"].to_numpy().copy()
    splits = np.array(data.examples["split"].to_pylist())
    texts[np.flatnonzero(splits == "test")[:n]] = texts[np.flatnonzero(splits == "train")[:n]]
    return with_column(data, text=pa.array(texts))


def test_overlap_with_train_is_counted_and_left_out_of_the_clean_score():
    data = _overlapping(make_data(), 10)
    result = score(ScoreConfig(), _trained(data=data).head(), data)
    assert result.metrics["overlap"] == 10 / 40
    assert result.metrics["n_clean_test"] == 30
    train = set(data.split("train").texts.tolist())
    rows = [row for row in result.predictions.to_pylist() if row["split"] == "test"]
    clean = [row["label"] == row["prediction"] for row in rows if row["text"] not in train]
    assert result.metrics["clean_test"] == np.mean(clean)
    disjoint = make_data()
    metrics = score(ScoreConfig(), _trained(data=disjoint).head(), disjoint).metrics
    assert metrics["overlap"] == 0
    assert metrics["clean_test"] == metrics["test"]


def test_without_train_or_without_a_clean_part_there_is_no_clean_score():
    data = make_data()
    head = _trained(data=data).head()
    untrained = data.examples.filter(np.array(data.examples["split"].to_pylist()) != "train")
    metrics = score(ScoreConfig(), head, replace(data, examples=untrained)).metrics
    assert [metrics[k] for k in ("overlap", "n_clean_test", "clean_test")] == [None] * 3
    metrics = score(ScoreConfig(), head, _overlapping(data, 40)).metrics
    assert [metrics[k] for k in ("overlap", "n_clean_test", "clean_test")] == [1.0, 0, None]


# Pairs


def _trained_pairs(task, data):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=3)
    config = FitConfig(head=ScorerHead(hidden=8), seed=1, optim=optim, **PAIR_TASKS[task])
    return fit(config, data, SilentProgress())


def _vectors(head, data):
    rows = data.readers["hidden/6"].features
    return head.embed(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)).double()


@pytest.mark.parametrize("task", list(PAIR_TASKS))
def test_pairs_are_scored_as_they_were_chosen_on_dev(task, tmp_path):
    data = make_pairs(task)
    result = _trained_pairs(task, data)
    score(ScoreConfig(batch_size=7), result.head(), data).save(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    # Texts are pooled in batches of another size.
    assert metrics["dev"] == pytest.approx(result.best.dev_metric, abs=1e-3)
    assert metrics["metric"] == result.config.metric
    assert (metrics["n_dev"], metrics["n_test"]) == (32, 32)
    table = pq.read_table(tmp_path / "predictions.parquet")
    pair = ["split", "text", "text_b", "label", "prediction", "score"]
    assert table.column_names[:9] == [*pair, "example", "digest", "digest_b"]
    assert ("prediction_name" in table.column_names) == (task == "pair_classification")
    test = table.filter(np.array(table["split"].to_pylist()) == "test")
    first, second = data.split("test").sides
    assert test["text"].to_pylist() == first.tolist()
    assert test["text_b"].to_pylist() == second.tolist()
    is_classes = task == "pair_classification"
    assert (metrics["majority"] is not None) == is_classes
    assert (metrics["class_balance"] is not None) == is_classes
    weights = pq.read_table(tmp_path / "token_weights.parquet")["text"].to_pylist()
    # Both texts of 64 pairs spread over test at most; here that is every pair.
    assert weights == list(dict.fromkeys(np.stack([first, second], axis=1).ravel().tolist()))


def test_predictions_of_graded_pairs_are_the_cosines_of_the_vectors():
    data = make_pairs("similarity")
    head = _trained_pairs("similarity", data).head()
    result = score(ScoreConfig(), head, data)
    z = _vectors(head, data)
    for name in ("dev", "test"):
        split = data.split(name)
        a, b = (z[torch.from_numpy(side)] for side in split.sides)
        cosines = torch.nn.functional.cosine_similarity(a, b).numpy()
        rows = [row for row in result.predictions.to_pylist() if row["split"] == name]
        # Vectors are float32 and pooled in batches of another size.
        np.testing.assert_allclose([row["prediction"] for row in rows], cosines, atol=1e-5)
        assert [row["label"] for row in rows] == split.labels.tolist()
        found = np.array([row["prediction"] for row in rows])
        rho, r = stats.spearmanr(found, split.labels)[0], stats.pearsonr(found, split.labels)[0]
        assert result.metrics[f"{name}_spearman"] == pytest.approx(rho, rel=1e-12)
        assert result.metrics[f"{name}_pearson"] == pytest.approx(r, rel=1e-12)
        assert result.metrics[name] == pytest.approx((rho + r) / 2, rel=1e-12)
    assert result.predictions["score"].null_count == 64


def test_predictions_of_class_pairs_are_those_of_both_vectors_side_by_side():
    data = make_pairs("pair_classification")
    head = _trained_pairs("pair_classification", data).head()
    table = score(ScoreConfig(), head, data).predictions
    z = _vectors(head, data).float()
    linear = head.model.classifier.linear
    sides = [torch.from_numpy(table[name].to_numpy()) for name in ("text", "text_b")]
    logits = torch.cat([z[side] for side in sides], dim=1) @ linear.weight.T + linear.bias
    # No two logits of the winner and the next are as near as rounding.
    top = logits.topk(2, dim=1).values
    assert float((top[:, 0] - top[:, 1]).min()) > 1e-4
    assert table["prediction"].to_pylist() == logits.argmax(dim=1).tolist()


def test_predictions_of_partners_are_their_ranks_in_the_split():
    data = make_pairs("unlabelled")
    head = _trained_pairs("unlabelled", data).head()
    result = score(ScoreConfig(), head, data)
    z = _vectors(head, data)
    z = z / z.norm(dim=1, keepdim=True)
    first, second = (z[torch.from_numpy(side)] for side in data.split("test").sides)
    near = first @ second.T
    ranks = (near >= near.diagonal()[:, None] - 1e-6).sum(dim=1).tolist()
    rows = [row for row in result.predictions.to_pylist() if row["split"] == "test"]
    assert [row["prediction"] for row in rows] == ranks
    np.testing.assert_allclose([row["score"] for row in rows], near.diagonal(), atol=1e-5)
    assert result.metrics["test"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert {row["label"] for row in rows} == {1.0}


def test_a_pair_overlaps_if_train_has_one_of_its_texts_on_either_side():
    data = make_pairs("similarity")
    train, test = data.split("train"), data.split("test")
    texts = data.examples["text"].to_numpy().copy()
    texts[96] = train.sides[1][0]  # the first text of the first test pair is a second text of train
    pairs = data.examples["text_pair"].to_numpy().copy()
    pairs[97:99] = train.sides[0][1:3]
    mixed = with_column(data, text=pa.array(texts), text_pair=pa.array(pairs))
    result = score(ScoreConfig(), _trained_pairs("similarity", mixed).head(), mixed)
    assert result.metrics["overlap"] == 3 / 32
    assert result.metrics["n_clean_test"] == 29
    rows = result.predictions.to_pylist()[32 + 3 :]
    found, labels = ([row[k] for row in rows] for k in ("prediction", "label"))
    assert labels == test.labels[3:].tolist()
    expected = (stats.spearmanr(found, labels)[0] + stats.pearsonr(found, labels)[0]) / 2
    assert result.metrics["clean_test"] == pytest.approx(expected, rel=1e-12)


def test_a_corpus_of_another_kind_or_without_spread_is_refused():
    data = make_pairs("similarity")
    head = _trained_pairs("similarity", data).head()
    with pytest.raises(InputError, match="kind 'similarity', this one is of kind 'unlabelled'"):
        score(ScoreConfig(), head, replace(data, task="unlabelled"))
    labels = data.examples["label"].to_numpy().copy()
    labels[96:] = 3.0
    with pytest.raises(InputError, match="all 32 test labels are 3"):
        score(ScoreConfig(), head, with_column(data, label=pa.array(labels)))
    pairs = make_pairs("unlabelled")
    seconds = pairs.examples["text_pair"].to_numpy().copy()
    seconds[96:] = seconds[96]
    with pytest.raises(InputError, match="32 test pairs all have the same second text"):
        score(
            ScoreConfig(),
            _trained_pairs("unlabelled", pairs).head(),
            with_column(pairs, text_pair=pa.array(seconds)),
        )


def test_vectors_of_texts_all_over_test_are_mapped(tmp_path):
    data = make_data(n_test=21, classes=3)
    trained = _trained(data=data).head()
    score(ScoreConfig(n_map_texts=7, batch_size=2), trained, data).save(tmp_path)
    test = data.split("test")
    picked = np.linspace(0, 20, 7).round().astype(int)
    rows = data.readers["hidden/6"].features.take(test.texts[picked])
    vectors = trained.embed(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)).numpy()
    found = read_vector_map(tmp_path)
    assert found is not None
    assert found.texts.tolist() == test.texts[picked].tolist()
    assert found.classes.tolist() == test.labels[picked].tolist()
    reference = PCA(2, svd_solver="full").fit(vectors.astype(np.float64))
    expected = reference.transform(vectors.astype(np.float64))
    np.testing.assert_allclose(np.abs(found.points), np.abs(expected), atol=1e-4)
    np.testing.assert_allclose(found.shares, reference.explained_variance_ratio_, atol=1e-5)


def test_there_is_no_map_of_pairs_nor_of_no_texts(tmp_path):
    pairs = make_pairs("pair_classification")
    assert (
        score(ScoreConfig(), _trained_pairs("pair_classification", pairs).head(), pairs).vectors
        is None
    )
    data = make_data()
    score(ScoreConfig(n_map_texts=0), _trained(data=data).head(), data).save(tmp_path)
    assert not (tmp_path / "map.parquet").exists()


def test_texts_of_another_corpus_have_their_weights_kept_and_no_score(tmp_path):
    data, other = make_data(), make_data(n_train=30, seed=3)
    head = _trained(data=data).head()
    alone = score(ScoreConfig(), head, data)
    result = score(ScoreConfig(n_weight_texts=5), head, data, chosen=other)
    assert result.metrics == alone.metrics
    result.save(tmp_path)
    kept = pq.read_table(tmp_path / "chosen_weights.parquet").to_pylist()
    n = len(other.digests)
    assert [row["text"] for row in kept] == [0, *(round(i * (n - 1) / 4) for i in (1, 2, 3)), n - 1]
    lengths = other.readers["hidden/6"].lengths
    for row in kept:
        assert row["digest"] == other.digests[row["text"]]
        assert len(row["weights"]) == lengths[row["text"]]
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-5)
    assert alone.chosen_weights is None
