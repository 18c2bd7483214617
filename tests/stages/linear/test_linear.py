"""Linear methods against scikit-learn called directly."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from sklearn import metrics as sklearn_metrics
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from permafrost.stages.embed import EmbedConfig, WhiteningConfig
from permafrost.stages.linear import LinearConfig, load_linear, run_linear
from permafrost.stages.metrics.identified import probability_columns
from permafrost.stages.metrics.vector_map import read_vector_map
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.keys import digest
from permafrost.storage.progress import SilentProgress
from tests.stages.linear.class_corpora import directions, features, of_split, pairs, singles

LAST = EmbedConfig(method="mean", layers="2")


def run(corpus, layers, **settings):
    config = LinearConfig(**{"vectors": (LAST,), **settings})
    return run_linear(config, [features(layers)], corpus, SilentProgress())


def reference(classifier, c, max_iter=5000):
    made = (
        LogisticRegression(C=c, max_iter=max_iter)
        if classifier == "logistic"
        else LinearSVC(C=c, dual=False, max_iter=max_iter)
    )
    return make_pipeline(StandardScaler(), made)


def wide(vectors, text):
    return vectors[text].astype(np.float64)


@pytest.mark.parametrize("classifier", ["logistic", "svm"])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_predictions_and_choice_are_those_of_scikit_learn(classifier, n_classes):
    corpus, vectors = singles(n_classes=n_classes)
    strengths = (10.0, 0.001, 0.1)
    found = run(corpus, {2: vectors}, classifier=classifier, c=strengths)
    text, _, labels = of_split(corpus, "train")
    dev_text, _, dev_labels = of_split(corpus, "dev")
    models = {
        c: reference(classifier, c).fit(wide(vectors, text), labels) for c in sorted(strengths)
    }
    on_dev = {c: m.score(wide(vectors, dev_text), dev_labels) for c, m in models.items()}
    kept = max(on_dev, key=on_dev.__getitem__)
    metrics = found.scores.metrics
    assert metrics["choice"] == {"layers": "2", "c": kept}
    assert metrics["dev"] == on_dev[kept]
    assert len(set(on_dev.values())) > 1, "the choice makes a difference"
    test_text, _, test_labels = of_split(corpus, "test")
    guesses = models[kept].predict(wide(vectors, test_text))
    rows = [r for r in found.scores.predictions.to_pylist() if r["split"] == "test"]
    assert [r["prediction"] for r in rows] == guesses.tolist()
    assert [r["label"] for r in rows] == test_labels.tolist()
    assert [r["text"] for r in rows] == test_text.tolist()
    assert metrics["test"] == np.mean(guesses == test_labels)
    decided = models[kept].decision_function(wide(vectors, test_text))
    np.testing.assert_allclose(
        found.model.decide(wide(vectors, test_text)).squeeze(axis=1)
        if n_classes == 2
        else found.model.decide(wide(vectors, test_text)),
        decided,
        rtol=1e-9,
        atol=1e-12,
    )
    assert metrics["n_parameters"] == (1 if n_classes == 2 else n_classes) * 9
    assert metrics["converged"] is True
    assert 0 < metrics["n_iter"] < 5000


def test_all_that_other_methods_record_is_there(tmp_path):
    corpus, vectors = singles()
    found = run(corpus, {2: vectors}, metric="mcc")
    found.save(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics == found.scores.metrics
    table = pq.read_table(tmp_path / "predictions.parquet")
    assert table.column_names == [
        *("split", "text", "label", "prediction", "score", "example", "digest"),
        *("label_name", "prediction_name", "probability_class_0", "probability_class_1"),
    ]
    assert table["prediction_name"].to_pylist() == [
        f"class {int(p)}" for p in table["prediction"].to_pylist()
    ]
    for split in ("dev", "test"):
        rows = [r for r in table.to_pylist() if r["split"] == split]
        labels, guesses = ([r[k] for r in rows] for k in ("label", "prediction"))
        assert metrics[f"n_{split}"] == len(rows) == 80
        assert metrics[f"{split}_f1"] == pytest.approx(sklearn_metrics.f1_score(labels, guesses))
        mcc = sklearn_metrics.matthews_corrcoef(labels, guesses)
        assert metrics[split] == metrics[f"{split}_mcc"] == pytest.approx(mcc)
        assert metrics[f"{split}_accuracy"] == np.mean(np.equal(labels, guesses))
    ones = np.mean(of_split(corpus, "test")[2])
    assert metrics["class_balance"] == pytest.approx({"class 0": 1 - ones, "class 1": ones})
    assert metrics["majority"] == max(ones, 1 - ones)
    assert (metrics["overlap"], metrics["n_clean_test"]) == (0, 80)
    assert metrics["clean_test"] == metrics["test"]


def test_scores_are_probabilities_of_a_logistic_regression_and_of_nothing_else():
    corpus, vectors = singles()
    text, _, labels = of_split(corpus, "train")
    found = run(corpus, {2: vectors}, c=(1.0,))
    model = reference("logistic", 1.0).fit(wide(vectors, text), labels)
    tested, _, _ = of_split(corpus, "test")
    rows = [r["score"] for r in found.scores.predictions.to_pylist() if r["split"] == "test"]
    np.testing.assert_allclose(rows, model.predict_proba(wide(vectors, tested))[:, 1], rtol=1e-9)
    svm = run(corpus, {2: vectors}, classifier="svm").scores.predictions
    assert svm["score"].null_count == len(svm)
    many, vectors = singles(n_classes=3)
    predictions = run(many, {2: vectors}).scores.predictions
    assert predictions["score"].null_count == len(predictions)
    shares = np.stack([predictions[c].to_numpy() for c in probability_columns(many.label_names)])
    np.testing.assert_allclose(shares.sum(0), 1, rtol=1e-6)
    assert shares.argmax(0).tolist() == predictions["prediction"].to_pylist()


@pytest.mark.parametrize("pair_features", ["full", "concat"])
def test_pairs_are_seen_as_the_config_says(pair_features):
    corpus, vectors = pairs()
    found = run(corpus, {2: vectors}, c=(1.0,), pair_features=pair_features)

    def seen(split):
        first, second, labels = of_split(corpus, split)
        u, v = wide(vectors, first), wide(vectors, second)
        parts = [u, v] if pair_features == "concat" else [u, v, abs(u - v), u * v]
        return np.concatenate(parts, axis=1), labels

    model = reference("logistic", 1.0).fit(*seen("train"))
    guesses = model.predict(seen("test")[0])
    rows = [r for r in found.scores.predictions.to_pylist() if r["split"] == "test"]
    assert [r["prediction"] for r in rows] == guesses.tolist()
    assert [r["text_b"] for r in rows] == of_split(corpus, "test")[1].tolist()
    assert found.scores.metrics["test"] == model.score(*seen("test"))
    # Only |u - v| tells: two vectors side by side do not.
    if pair_features == "full":
        assert found.scores.metrics["test"] > 0.95
    else:
        assert found.scores.metrics["test"] < 0.65


def test_dev_chooses_layers_together_with_c():
    corpus, vectors = singles(noise=0.3)
    layers = {1: directions(240, 5), 2: vectors, 3: directions(240, 6)}
    candidates = tuple(EmbedConfig(method="mean", layers=k) for k in ("1", "2", "3", "1,3"))
    found = run(corpus, layers, vectors=candidates, c=(0.1, 1.0))
    assert found.scores.metrics["choice"]["layers"] == "2"
    assert found.model.vectors == candidates[1]
    alone = {
        (v.layers, c): run(corpus, layers, vectors=(v,), c=(c,)).scores.metrics["dev"]
        for v in candidates
        for c in (0.1, 1.0)
    }
    best = max(alone, key=alone.__getitem__)
    assert (found.model.vectors.layers, found.model.c) == best
    assert found.scores.metrics["dev"] == alone[best]


def test_ties_go_to_the_earlier_vectors_and_the_smaller_c():
    corpus, vectors = singles(noise=0.0)
    layers = {1: vectors, 2: vectors, 3: vectors}
    candidates = tuple(EmbedConfig(method="mean", layers=k) for k in ("3", "1"))
    # So near to each other that dev cannot tell them apart.
    strengths = (1.0 + 2e-9, 1.0, 1.0 + 1e-9)
    alone = [run(corpus, layers, c=(c,)).scores.metrics["dev"] for c in strengths]
    assert len(set(alone)) == 1
    found = run(corpus, layers, vectors=candidates, c=strengths)
    assert found.scores.metrics["choice"] == {"layers": "3", "c": 1.0}


def test_test_labels_and_vectors_play_no_role_in_what_is_fitted_and_chosen():
    corpus, vectors = singles()
    layers = {1: directions(240, 5), 2: vectors}
    candidates = tuple(EmbedConfig(method="mean", layers=k) for k in ("1", "2"))
    found = run(corpus, layers, vectors=candidates)
    tested = of_split(corpus, "test")[0]
    blind = {k: v.copy() for k, v in layers.items()}
    for values in blind.values():
        values[tested] = 1e6
    labels = corpus.examples["label"].to_numpy().copy()
    labels[tested] = 0
    other = replace(
        corpus, examples=corpus.examples.set_column(3, "label", pa.array(labels, pa.float64()))
    )
    again = run(other, blind, vectors=candidates)
    assert np.array_equal(found.model.coef, again.model.coef)
    assert np.array_equal(found.model.mean, again.model.mean)
    assert found.scores.metrics["choice"] == again.scores.metrics["choice"]
    assert found.scores.metrics["dev"] == again.scores.metrics["dev"]


@pytest.mark.parametrize("classifier", ["logistic", "svm"])
def test_shuffled_labels_are_at_chance_and_scored_against_the_true_ones(classifier):
    corpus, vectors = singles(n=1500, noise=0.0)
    settings = {"classifier": classifier, "c": (1.0,)}
    true = run(corpus, {2: vectors}, **settings).scores.metrics
    mixed = run(corpus, {2: vectors}, labels="shuffled", **settings)
    assert true["test"] > 0.95
    # 500 texts: standard deviation 0.022, so four of them.
    assert mixed.scores.metrics["test"] == pytest.approx(0.5, abs=0.09)
    rows = [r for r in mixed.scores.predictions.to_pylist() if r["split"] == "test"]
    assert [r["label"] for r in rows] == of_split(corpus, "test")[2].tolist()
    other = run(corpus, {2: vectors}, labels="shuffled", seed=1, **settings)
    assert not np.array_equal(other.model.coef, mixed.model.coef)
    again = run(corpus, {2: vectors}, labels="shuffled", **settings)
    assert np.array_equal(again.model.coef, mixed.model.coef)


def test_the_same_config_and_vectors_give_the_same_classifier():
    corpus, vectors = singles()
    one, other = (run(corpus, {2: vectors}, classifier="svm") for _ in range(2))
    assert np.array_equal(one.model.coef, other.model.coef)
    assert one.scores.metrics == other.scores.metrics
    assert one.scores.predictions.equals(other.scores.predictions)


@pytest.mark.parametrize("classifier", ["logistic", "svm"])
def test_a_solver_that_is_stopped_says_so_in_its_result_alone(classifier):
    corpus, vectors = singles()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        found = run(corpus, {2: vectors}, classifier=classifier, c=(1000.0,), max_iter=1)
    assert found.scores.metrics["converged"] is False
    assert found.scores.metrics["n_iter"] == 1


def test_constant_columns_say_nothing():
    corpus, vectors = singles()
    vectors[:, 3] = 0.1
    found = run(corpus, {2: vectors}, c=(1.0,))
    assert found.model.scale[3] == 1.0
    assert found.model.coef[0, 3] == pytest.approx(0, abs=1e-6)
    assert np.isfinite(found.model.coef).all()


@pytest.mark.parametrize("made", [singles, pairs])
def test_a_column_that_is_rounding_alone_says_nothing(made):
    """float16 keeps numbers of 1e-7 in steps of 6e-8: of two texts one may be -1e-7 and the other 0."""
    corpus, vectors = made()
    width = vectors.shape[1]
    vectors[:, 3] = np.random.default_rng(0).normal(-1e-7, 5e-9, len(vectors))
    stored = vectors.astype(np.float16).astype(np.float32)
    assert stored[:, 3].std() > 0
    found = run(corpus, {2: stored}, c=(10.0,)).model
    assert {float(s) for s in found.scale[3::width]} == {1.0}
    text, pair, _ = of_split(corpus, "test")
    sides = [text] if made is singles else [text, pair]
    answers = [found.decide(*(rows[side] for side in sides)) for rows in (stored, vectors)]
    np.testing.assert_allclose(*answers, rtol=0.02, atol=0.02)
    again = vectors.copy()
    again[:, 3] = 0
    other = found.decide(*(again[side] for side in sides))
    np.testing.assert_allclose(other, answers[1], atol=1e-5)


def test_a_small_column_that_varies_counts():
    corpus, vectors = singles()
    small = vectors.copy()
    small[:, 3] *= 1e-5
    scales = [run(corpus, {2: rows}, c=(1.0,)).model.scale[3] for rows in (vectors, small)]
    assert scales[1] == pytest.approx(1e-5 * scales[0])


# The classifier by itself


@pytest.mark.parametrize("make", [singles, pairs])
def test_a_saved_classifier_loads_and_predicts_the_same(make, tmp_path):
    corpus, vectors = make()
    found = run(corpus, {2: vectors})
    found.save(tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    written = {"metrics.json", "predictions.parquet", "linear.safetensors", "linear.json"}
    assert names == written | ({"map.parquet"} if corpus.task == "classification" else set())
    loaded = load_linear(tmp_path)
    first, second, _ = of_split(corpus, "test")
    sides = [vectors[first]] if make is singles else [vectors[first], vectors[second]]
    rows = [r for r in found.scores.predictions.to_pylist() if r["split"] == "test"]
    assert loaded.predict(*sides).tolist() == [r["prediction"] for r in rows]
    np.testing.assert_array_equal(loaded.decide(*sides), found.model.decide(*sides))
    assert loaded.vectors == LAST
    assert loaded.label_names == corpus.label_names
    assert loaded.n_parameters == found.scores.metrics["n_parameters"]


def test_vectors_of_another_width_or_number_are_refused(tmp_path):
    corpus, vectors = singles()
    run(corpus, {2: vectors}).save(tmp_path)
    model = load_linear(tmp_path)
    with pytest.raises(InputError, match=r"5 wide, which makes 5 columns.*fitted on 8.*\"layers\""):
        model.predict(vectors[:, :5])
    with pytest.raises(InputError, match=r"2 arrays of vectors.*'classification' takes 1"):
        model.predict(vectors, vectors)


def test_a_kind_of_a_plug_in_that_was_not_named_is_no_damage(tmp_path):
    corpus, vectors = singles()
    run(corpus, {2: vectors}).save(tmp_path)
    path = tmp_path / "linear.json"
    record = json.loads(path.read_text())
    record["vectors"] = {"method": {"kind": "median_of_mine"}}
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"needs the kind 'median_of_mine'.*plug-in"):
        load_linear(tmp_path)


def test_damaged_and_missing_files_are_told(tmp_path):
    with pytest.raises(NotFoundError, match=r"no linear classifier: .*linear\.json"):
        load_linear(tmp_path)
    corpus, vectors = singles()
    run(corpus, {2: vectors}).save(tmp_path)
    whole = (tmp_path / "linear.safetensors").read_bytes()
    (tmp_path / "linear.safetensors").write_bytes(whole[:-9])
    with pytest.raises(CorruptDataError, match="delete the artifact and run again"):
        load_linear(tmp_path)
    (tmp_path / "linear.safetensors").write_bytes(whole)
    path = tmp_path / "linear.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(CorruptDataError, match="format 9"):
        load_linear(tmp_path)


def test_a_class_that_train_lacks_is_never_predicted():
    """Classes that a dataset declares need not all occur in train."""
    corpus, vectors = singles(n_classes=3)
    train = np.array(corpus.examples["split"].to_pylist()) == "train"
    labels = corpus.examples["label"].to_numpy().copy()
    labels[train & (labels == 0)] = 2
    sparse = replace(corpus, examples=corpus.examples.set_column(3, "label", pa.array(labels)))
    found = run(sparse, {2: vectors})
    assert found.model.classes.tolist() == [1, 2]
    assert set(found.scores.predictions["prediction"].to_pylist()) <= {1.0, 2.0}
    assert found.scores.predictions["score"].null_count == 160
    shares = [
        found.scores.predictions[c].to_numpy() for c in probability_columns(corpus.label_names)
    ]
    assert not shares[0].any(), "train has no such class"
    np.testing.assert_allclose(shares[1] + shares[2], 1, rtol=1e-6)


# Refusals


def test_one_class_in_train_is_refused():
    corpus, vectors = singles()
    labels = corpus.examples["label"].to_numpy().copy()
    labels[np.array(corpus.examples["split"].to_pylist()) == "train"] = 1
    one = replace(corpus, examples=corpus.examples.set_column(3, "label", pa.array(labels)))
    with pytest.raises(InputError, match="all 80 train examples have the label 'class 1'"):
        run(one, {2: vectors})


def test_a_task_without_classes_or_splits_is_refused():
    corpus, vectors = singles()
    with pytest.raises(InputError, match="needs classes, but the task is 'similarity'"):
        run(replace(corpus, task="similarity", label_names=()), {2: vectors})
    rest = corpus.examples.filter(np.array(corpus.examples["split"].to_pylist()) != "dev")
    with pytest.raises(InputError, match=r"no dev examples \(its splits: test, train\)"):
        run(replace(corpus, examples=rest), {2: vectors})
    many, vectors = singles(n_classes=3)
    with pytest.raises(InputError, match="f1 is that of class 1 of two, but the corpus has 3"):
        run(many, {2: vectors}, metric="f1")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"vectors": ()}, "at least 1 item"),
        ({"vectors": ({"layers": "auto"},)}, r"'auto' are ranked on graded pairs.*candidates"),
        ({"vectors": ({"whitening": WhiteningConfig()},)}, "whitening is fitted on the texts of"),
        ({"c": (0.0,)}, "greater than 0"),
        ({"c": ()}, "at least 1 item"),
        ({"classifier": "forest"}, "logistic"),
        ({"max_iter": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_configs_are_refused(fields, says):
    with pytest.raises(ValidationError, match=says):
        LinearConfig(**{"vectors": (LAST,), **fields})


def test_every_field_changes_the_key():
    plain = LinearConfig(vectors=(LAST,))
    changes = {
        "vectors": (EmbedConfig(method="mean", layers="3"),),
        "classifier": "svm",
        "c": (1.0,),
        "pair_features": "concat",
        "metric": "mcc",
        "labels": "shuffled",
        "seed": 1,
        "max_iter": 10,
        "n_map_texts": 5,
    }
    assert changes.keys() == LinearConfig.model_fields.keys()
    keys = {digest(plain.model_copy(update={k: v})) for k, v in changes.items()}
    assert len(keys | {digest(plain)}) == len(changes) + 1


@pytest.mark.parametrize("make", [singles, pairs])
def test_vectors_of_test_texts_are_mapped_where_single_texts_have_classes(make, tmp_path):
    corpus, vectors = make()
    run(corpus, {2: vectors}, n_map_texts=5).save(tmp_path)
    found = read_vector_map(tmp_path)
    if corpus.task != "classification":
        assert found is None
        return
    assert found is not None
    test = corpus.split("test")
    picked = np.linspace(0, test.num_rows - 1, 5).round().astype(int)
    assert found.texts.tolist() == test.column("text").to_numpy()[picked].tolist()
    assert found.classes.tolist() == test.column("label").to_numpy()[picked].tolist()
    mine = vectors[found.texts].astype(np.float64)
    distances = np.linalg.norm(found.points[:, None] - found.points[None], axis=-1)
    full = np.linalg.norm(mine[:, None] - mine[None], axis=-1)
    assert (distances <= full + 1e-4).all(), "a projection brings nothing further apart"
