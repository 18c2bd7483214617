import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.freeze import (
    AutoencoderConfig,
    AutoencoderSiameseHead,
    CosineMlpHead,
    EncoderSizes,
    GradedPairs,
    PairFitConfig,
    SiameseHead,
    UnifiedHead,
    UnifiedProjectionHead,
    load_pair_fit,
    predict,
)
from permafrost.stages.freeze.corpus import fit_corpus
from permafrost.stages.freeze.fit_pairs import fit_pairs
from permafrost.stages.freeze.graded import graded_pairs
from permafrost.stages.freeze.pretrain import pretrain
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, PermafrostError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.diagonal import diagonal
from tests.short import short
from tests.stages.freeze.planted_pairs import make_latents, make_pairs

SIZES = EncoderSizes(early=6, late=8)
HEADS = {
    "cosine_mlp": CosineMlpHead(hidden=8),
    "siamese": SiameseHead(d_code=16, hidden=16),
    "autoencoder_siamese": AutoencoderSiameseHead(encoders=SIZES, hidden=64),
    "unified": UnifiedHead(encoders=SIZES),
    "unified_projection": UnifiedProjectionHead(encoders=SIZES, d_embed=16),
}
LATENTS, TOPICS = make_latents()
TRAIN = make_pairs(TOPICS, range(300), 500, 1)
DEV, TEST = (make_pairs(TOPICS, range(300, 400), 150, seed) for seed in (2, 3))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _config(kind="autoencoder_siamese", **settings):
    given = {"lr": 3e-3, "batch_size": 32, "max_epochs": 4, "evaluate_every": 1, "seed": 3}
    return PairFitConfig(head=HEADS[kind], **(given | settings))


def _fit(config, train=TRAIN, dev=DEV, autoencoders=None, latents=LATENTS):
    return fit_pairs(config, latents, train, dev, autoencoders, SilentProgress())


def _autoencoders(sizes=SIZES, max_epochs=1):
    config = AutoencoderConfig(
        encoders=sizes, max_epochs=max_epochs, batch_size=32, lr=2e-3, seed=0
    )
    return pretrain(config, LATENTS[:300], SilentProgress()).autoencoders()


# Learning


def _unexplained(result):
    """Share of the variance of unseen pairs' labels that is left; the mean predictor leaves 1."""
    residual = predict(result.head(), LATENTS, TEST.pairs) - TEST.labels
    # log_variance leaves the mean of the residuals open, so it is the variance that must fall.
    mse = result.config.loss == "mse"
    return (np.mean(residual**2) if mse else np.var(residual)) / np.var(TEST.labels)


@pytest.mark.few(1)
@diagonal(
    {
        "kind": ["siamese", "autoencoder_siamese", "unified_projection"],
        "loss": ["mse", "log_variance"],
    }
)
def test_a_planted_similarity_of_unseen_texts_is_predicted_better_than_by_the_mean(kind, loss):
    result = _fit(_config(kind, loss=loss, max_epochs=20))
    assert _unexplained(result) < 0.6
    assert result.history[-1].train_loss < result.history[0].train_loss


@pytest.mark.deep
def test_pretraining_then_training_on_pairs_predicts_unseen_pairs():
    result = _fit(_config(max_epochs=40), autoencoders=_autoencoders(max_epochs=40))
    assert _unexplained(result) < 0.6


def test_pretrained_encoders_are_where_training_starts():
    config, autoencoders = _config(lr=1e-9, max_epochs=1), _autoencoders()
    started = _fit(config, autoencoders=autoencoders).state
    for name, value in autoencoders.encoders.named_parameters():
        # One epoch of 16 Adam steps of 1e-9.
        torch.testing.assert_close(started[f"encoders.{name}"], value, rtol=0, atol=1e-7)
    trained = _fit(_config(max_epochs=1), autoencoders=autoencoders).state
    assert all(
        not torch.equal(trained[f"encoders.{name}"], value)
        for name, value in autoencoders.encoders.named_parameters()
    )


def test_cosine_mlp_keeps_the_standardisation_of_train(tmp_path):
    result = _fit(_config("cosine_mlp"))
    a, b = (LATENTS[TRAIN.pairs[:, side]].astype(np.float64) for side in (0, 1))
    raw = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    # Float32 cosines near 1 against float64 ones.
    assert result.state["mean"].item() == pytest.approx(raw.mean(), abs=1e-6)
    assert result.state["deviation"].item() == pytest.approx(raw.std(ddof=1), rel=1e-4)
    result.save(tmp_path)
    assert torch.equal(load_pair_fit(tmp_path).state["mean"], result.state["mean"])


# Selection


@pytest.mark.few(1)
@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_the_best_evaluated_epoch_on_dev_is_kept(metric):
    result = _fit(_config(metric=metric, max_epochs=7, evaluate_every=3, lr=3e-2))
    evaluated = [record for record in result.history if record.dev_metric is not None]
    assert [record.epoch for record in evaluated] == [3, 6, 7]
    assert [record.epoch for record in result.history] == list(range(1, 8))
    assert result.best == max(evaluated, key=lambda record: (record.dev_metric, -record.epoch))
    found = predict(result.head(), LATENTS, DEV.pairs).astype(np.float64)
    reference = stats.pearsonr if metric == "pearson" else stats.spearmanr
    expected = reference(found, DEV.labels)[0]
    assert result.best.dev_metric == pytest.approx(expected, abs=1e-9)


def test_dev_chooses_but_does_not_train():
    config = _config(max_epochs=3)
    one, other = _fit(config, dev=DEV), _fit(config, dev=TEST)
    assert [r.train_loss for r in one.history] == [r.train_loss for r in other.history]
    assert [r.dev_metric for r in one.history] != [r.dev_metric for r in other.history]


def test_a_head_that_tells_no_pairs_apart_is_an_error():
    same = GradedPairs(np.repeat([[0, 0], [1, 1]], 8, axis=0), np.linspace(0, 1, 16))
    with pytest.raises(PermafrostError, match="gives all 16 dev pairs the same similarity"):
        _fit(_config("unified"), dev=same)


# The control


def test_shuffled_labels_are_those_of_other_pairs_in_train_and_dev():
    config = _config("siamese", labels="shuffled", max_epochs=2)
    train, dev = (
        GradedPairs(
            part.pairs,
            part.labels[np.random.default_rng([3, 2**32, stream]).permutation(len(part))],
        )
        for stream, part in enumerate((TRAIN, DEV))
    )
    assert not np.array_equal(train.labels, TRAIN.labels)
    assert not np.array_equal(dev.labels, DEV.labels)
    _same(_fit(config), _fit(_config("siamese", max_epochs=2), train=train, dev=dev))


@pytest.mark.deep
def test_nothing_of_unseen_pairs_is_learnt_from_shuffled_labels():
    learnt, control = (
        [
            np.corrcoef(predict(result.head(), LATENTS, TEST.pairs), TEST.labels)[0, 1]
            for seed in range(3)
            for result in [_fit(_config("siamese", seed=seed, labels=labels, max_epochs=20))]
        ]
        for labels in ("true", "shuffled")
    )
    assert np.mean(learnt) > 0.6
    # Five standard errors of the mean of three correlations of 150 pairs.
    assert abs(np.mean(control)) < 5 / np.sqrt(3 * 150)


def test_true_labels_are_written_as_before_there_was_a_control():
    assert "labels" not in _config().model_dump(mode="json")
    assert _config(labels="shuffled").model_dump(mode="json")["labels"] == "shuffled"


# Test by epoch


@pytest.mark.deep
@pytest.mark.parametrize("metric", ["pearson", pytest.param("spearman", marks=pytest.mark.deep)])
def test_test_scores_are_kept_after_every_evaluated_epoch_and_change_nothing(metric, tmp_path):
    settings = {"metric": metric, "max_epochs": 7, "evaluate_every": 3, "lr": 3e-2}
    plain = _fit(_config(**settings))
    kept = fit_pairs(
        *(_config(**settings, test_by_epoch="kept"), LATENTS, TRAIN, DEV, None, SilentProgress()),
        test=TEST,
    )
    _same(plain, kept)
    assert plain.test_by_epoch == ()
    kept.save(tmp_path)
    table = pq.read_table(tmp_path / "test_by_epoch.parquet").to_pydict()
    assert table["epoch"] == [3, 6, 7]
    found = predict(kept.head(), LATENTS, TEST.pairs).astype(np.float64)
    reference = stats.pearsonr if metric == "pearson" else stats.spearmanr
    at_best = dict(zip(table["epoch"], table["test"], strict=True))[kept.best.epoch]
    assert at_best == pytest.approx(reference(found, TEST.labels)[0], abs=1e-9)


def test_test_pairs_whose_grades_are_on_no_scale_of_training_change_nothing_either():
    """A correlation does not depend on the scale, and the fit is the same."""
    parts = {"train": TRAIN, "dev": DEV, "test": TEST}
    low, high = 1.0, 6.0
    texts = [f"text {i}" for i in range(len(LATENTS))]
    columns = {
        "split": [split for split, part in parts.items() for _ in range(len(part))],
        "text": np.concatenate([p.pairs[:, 0] for p in parts.values()]),
        "text_pair": np.concatenate([p.pairs[:, 1] for p in parts.values()]),
        "label": np.concatenate(
            [
                low + (high - low) * p.labels + (2.0 if s == "test" else 0.0)
                for s, p in parts.items()
            ]
        ),
    }
    examples = pa.table(columns).cast(EXAMPLES)
    corpus = Corpus(texts, examples, "similarity", (), [text_digest(t) for t in texts])
    settings = {"metric": "pearson", "max_epochs": 2}
    plain, kept = (
        fit_corpus(
            _config(**settings, **more), LATENTS, corpus, (low, high), None, SilentProgress()
        )
        for more in ({}, {"test_by_epoch": "kept"})
    )
    _same(plain, kept)
    assert len(kept.test_by_epoch) == 2
    with pytest.raises(InputError, match=r"of 150 test labels lie outside label_range"):
        graded_pairs(corpus, "test", (low, high))


# Determinism


def _same(one, other):
    assert one.history == other.history
    assert one.best == other.best
    for name, value in one.state.items():
        assert torch.equal(value, other.state[name]), name


@pytest.mark.parametrize("kind", short(HEADS, "siamese"))
def test_a_fit_depends_on_its_seed_alone(kind):
    before = torch.get_rng_state()
    one = _fit(_config(kind, max_epochs=2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    _same(one, _fit(_config(kind, max_epochs=2)))
    assert _fit(_config(kind, max_epochs=2, seed=4)).history != one.history


@pytest.mark.deep
def test_fits_side_by_side_do_not_disturb_each_other():
    configs = [_config(max_epochs=2, seed=seed) for seed in (1, 2, 3)]
    alone = [_fit(config) for config in configs]
    with ThreadPoolExecutor(3) as pool:
        for one, other in zip(alone, pool.map(_fit, configs), strict=True):
            _same(one, other)


def test_the_optimisers_differ_by_decoupled_weight_decay():
    adam, adamw = (
        _fit(_config(optimizer=name, weight_decay=0.5, max_epochs=1)) for name in ("adam", "adamw")
    )
    assert adam.history != adamw.history


# Relation 70: the backbone gets no gradient


@pytest.mark.parametrize("kind", HEADS)
def test_latents_get_no_gradient_and_stay_as_they_are(kind, monkeypatch):
    seen = []
    original = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda x: seen.append(original(x)) or seen[-1])
    latents = LATENTS.copy()
    _fit(_config(kind, max_epochs=1), latents=latents)
    assert len(seen) > 20
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in seen)
    assert np.array_equal(latents, LATENTS)


def test_a_last_pair_alone_joins_the_batch_before_it():
    train = GradedPairs(TRAIN.pairs[:33], TRAIN.labels[:33])
    result = _fit(_config(max_epochs=2), train=train)
    assert all(np.isfinite(record.train_loss) for record in result.history)
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        _config(batch_size=1)


# Prediction and files


def test_predictions_are_those_of_pairs_one_by_one():
    head = _fit(_config(max_epochs=1)).head()
    pairs = np.concatenate([TEST.pairs, DEV.pairs])
    found = predict(head, LATENTS, pairs)
    assert found.shape == (300,)
    for k in (0, 255, 256, 299):
        a, b = (torch.from_numpy(LATENTS[pairs[k, side]])[None] for side in (0, 1))
        # One row against a batch of 256.
        assert found[k] == pytest.approx(head(a, b).item(), abs=1e-5)
    assert predict(head, LATENTS, np.empty((0, 2), np.int64)).shape == (0,)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", HEADS)
def test_a_saved_fit_predicts_the_same(kind, tmp_path):
    result = _fit(_config(kind, max_epochs=2))
    result.save(tmp_path)
    loaded = load_pair_fit(tmp_path)
    _same(result, loaded)
    assert loaded.config == result.config
    one, other = (predict(fit.head(), LATENTS, TEST.pairs) for fit in (result, loaded))
    assert np.array_equal(one, other)
    record = json.loads((tmp_path / "pair_head.json").read_text())
    assert record["n_parameters"] == sum(p.numel() for p in result.head().parameters())
    table = pq.read_table(tmp_path / "history.parquet")
    assert table.column("train_loss").to_pylist() == [r.train_loss for r in result.history]


def test_the_log_has_every_step_and_what_dev_said_after_its_epoch(tmp_path):
    train = GradedPairs(TRAIN.pairs[:96], TRAIN.labels[:96])
    result = _fit(_config(max_epochs=3, evaluate_every=2), train=train)
    result.save(tmp_path)
    lines = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    # 96 pairs in batches of 32.
    assert [(line["epoch"], line["step"]) for line in lines] == [
        (str(1 + i // 3), str(i + 1)) for i in range(9)
    ]
    for record in result.history:
        losses = [float(line["loss"]) for line in lines if line["epoch"] == str(record.epoch)]
        assert np.mean(losses) == pytest.approx(record.train_loss)
    said = {line["step"]: float(line["dev_metric"]) for line in lines if line["dev_metric"]}
    assert said == {"6": result.history[1].dev_metric, "9": result.history[2].dev_metric}


def test_missing_and_damaged_pair_heads_are_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"pair_head\.json is missing"):
        load_pair_fit(tmp_path)
    _fit(_config(max_epochs=1)).save(tmp_path)
    text = (tmp_path / "pair_head.json").read_text()
    (tmp_path / "pair_head.json").write_text(text.replace('"d_model": 12', '"d_model": 13'))
    with pytest.raises(CorruptDataError, match="run the fit again"):
        load_pair_fit(tmp_path)
    (tmp_path / "history.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"history\.parquet is missing"):
        load_pair_fit(tmp_path)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": DEV.labels * 5}, "lie outside 0 to 1"),
        ({"labels": np.where(np.arange(150) == 7, np.nan, DEV.labels)}, "1 of 150 dev labels"),
        ({"labels": np.full(150, 0.5)}, "all 150 dev labels are 0.5"),
        ({"pairs": DEV.pairs + 300}, "but there are latents for 400"),
        ({"pairs": DEV.pairs[:1], "labels": DEV.labels[:1]}, "has 1 pairs; give at least 2"),
    ],
)
def test_unusable_pairs_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        _fit(_config(), dev=replace(DEV, **change))


def test_autoencoders_are_refused_by_a_head_without_encoders():
    with pytest.raises(InputError, match="given to a head that has none"):
        _fit(_config("cosine_mlp"), autoencoders=_autoencoders())


def test_autoencoders_of_other_widths_are_refused():
    with pytest.raises(InputError, match=r"2 layers of 5 and 2 layers of 7.*2 layers of 6"):
        _fit(_config(), autoencoders=_autoencoders(EncoderSizes(early=5, late=7)))


def test_latents_that_are_not_finite_are_named():
    broken = LATENTS.copy()
    broken[TRAIN.pairs[0, 0], 1, 0] = np.nan
    with pytest.raises(PermafrostError, match="the loss log_variance is nan at epoch 1"):
        _fit(_config(), latents=broken)
    head = _fit(_config(max_epochs=1)).head()
    text = TEST.pairs[4, 0]
    wrong = LATENTS.copy()
    wrong[text, 2] = np.nan
    with pytest.raises(PermafrostError, match=f"the first is that of the texts .*{text}"):
        predict(head, wrong, TEST.pairs[4:5])


@pytest.mark.parametrize("scale", ["centred", "vector", "feature"])
def test_a_head_on_scaled_latents_is_one_on_latents_that_were_scaled_before(tmp_path, scale):
    latents, topics = make_latents(60)
    train, dev = make_pairs(topics, range(40), 32, 1), make_pairs(topics, range(40, 60), 16, 2)
    seen = np.unique(train.pairs)
    own = latents - latents.mean(axis=2, keepdims=True)
    before = {
        "centred": own,
        "vector": own / latents.std(axis=2, keepdims=True),
        "feature": (latents - latents[seen].mean(axis=0)) / latents[seen].std(axis=0),
    }[scale]
    given = {"head": SiameseHead(d_code=4, hidden=4), "max_epochs": 1, "batch_size": 16, "seed": 0}
    config = PairFitConfig(**given, scale=scale)
    found = fit_pairs(config, latents, train, dev, None, SilentProgress())
    expected = fit_pairs(PairFitConfig(**given), before, train, dev, None, SilentProgress())
    found.save(tmp_path)
    answers = predict(load_pair_fit(tmp_path).head(), latents, dev.pairs)
    # Float32 statistics of numbers near 6.
    assert answers == pytest.approx(predict(expected.head(), before, dev.pairs), abs=1e-3)
    other = fit_pairs(PairFitConfig(**given), latents, train, dev, None, SilentProgress())
    unscaled = predict(other.head(), latents, dev.pairs)
    assert np.abs(answers - unscaled).max() > 1e-3
