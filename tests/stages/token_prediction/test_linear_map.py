"""The linear map to next-token queries, against formulas written out and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from permafrost.stages.extraction.unembedding import Unembedding
from permafrost.stages.token_prediction.config import MapConfig
from permafrost.stages.token_prediction.linear_map import Examples, infonce, quality, train_map
from permafrost.stages.token_prediction.linear_softmax import train_keys
from permafrost.storage.errors import InputError


def examples(n: int, d: int, n_classes: int, seed: int) -> Examples:
    """Classes that overlap, so that no map separates them; the truth is the same for every seed."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(d, n_classes))
    rows = rng.normal(size=(n, d)) * np.linspace(0.5, 4, d) + 3
    noise = rng.gumbel(size=(n, n_classes))
    targets = (rows @ truth * 0.4 + noise).argmax(axis=1)
    return Examples(torch.from_numpy(rows).float(), torch.from_numpy(targets))


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_infonce_is_minus_log_of_the_positives_share(temperature: float) -> None:
    """Relation 47, as the paper writes InfoNCE."""
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(6, 4)), rng.normal(size=(9, 4))
    positives = rng.integers(0, 9, 6)
    similar = np.exp(queries @ keys.T / temperature)
    expected = -np.log(similar[np.arange(6), positives] / similar.sum(axis=1))
    found = infonce(
        torch.from_numpy(queries),
        torch.from_numpy(keys),
        torch.from_numpy(positives),
        temperature,
    )
    assert found.numpy() == pytest.approx(expected, rel=1e-12)


def test_with_unit_keys_it_is_a_logistic_regression() -> None:
    """The same convex loss, so the same minimum, of which Adam stops less than a hundredth above."""
    train = examples(600, 5, 4, seed=0)
    config = MapConfig(lr=0.03, batch_size=600, max_epochs=400, patience=400)
    trained = train_map(config, train, train, torch.eye(4))
    ours = float(infonce(trained.queries(train.rows), torch.eye(4), train.targets, 1.0).mean())
    rows = train.rows.double().numpy()
    standard = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    model = LogisticRegression(C=np.inf, max_iter=5000).fit(standard, train.targets.numpy())
    shares = model.predict_proba(standard)
    best = -np.log(shares[np.arange(600), train.targets.numpy()]).mean()
    assert best - 1e-5 <= ours <= best + 0.01
    assert best < np.log(4) - 0.1, "there is something to learn"


@pytest.mark.deep
def test_trained_keys_are_a_logistic_regression() -> None:
    """All parameters of a linear softmax, bias included: the minimum of the same loss, less than a hundredth
    above, and that loss by its formula."""
    train = examples(600, 5, 4, seed=0)
    # The rows are scaled by the root of their width, so that the same minimum is further away.
    config = MapConfig(lr=0.03 * 5**0.5, batch_size=600, max_epochs=400, patience=400)
    trained = train_keys(config, train, train, n_vocabulary=4)
    rows, targets = train.rows.double().numpy(), train.targets.numpy()
    standard = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    keys = trained.keys.double().numpy()
    scores = np.exp(standard / 5**0.5 @ keys[:, :5].T + keys[:, 5])
    ours = -np.log(scores[np.arange(600), targets] / scores.sum(axis=1)).mean()
    found = quality(train, trained.queries, trained.scores, 1.0, 100)
    assert found.nll == pytest.approx(ours, rel=1e-5)
    model = LogisticRegression(C=np.inf, max_iter=5000).fit(standard, targets)
    best = -np.log(model.predict_proba(standard)[np.arange(600), targets]).mean()
    assert best - 1e-5 <= ours <= best + 0.01
    assert best < np.log(4) - 0.1, "there is something to learn"


@pytest.mark.deep
def test_trained_keys_learn_from_the_vectors_of_a_wide_backbone() -> None:
    """At the default rate, whose steps would throw unscaled vectors of this width further than they reach."""
    train, dev = examples(4_000, 4096, 50, seed=0), examples(500, 4096, 50, seed=1)
    trained = train_keys(MapConfig(), train, dev, n_vocabulary=50)
    found = quality(dev, trained.queries, trained.scores, 1.0, 100)
    assert found.nll < np.log(50) - 0.1


def test_trained_keys_need_no_geometry_of_the_unembeddings() -> None:
    """Keys of one column put tokens in a row, and a map cannot tell those inside; trained keys can."""
    train, dev = examples(600, 4, 6, seed=3), examples(300, 4, 6, seed=4)
    config = MapConfig(lr=0.03, max_epochs=30, patience=30)
    keys = torch.arange(6.0)[:, None]
    mapped = train_map(config, train, dev, keys)
    by_map = quality(dev, mapped.queries, Unembedding(keys, None), 1.0, 100)
    trained = train_keys(config, train, dev, n_vocabulary=6)
    by_keys = quality(dev, trained.queries, trained.scores, 1.0, 100)
    assert by_keys.nll < by_map.nll - 0.1
    again = train_keys(config, train, dev, n_vocabulary=6)
    assert torch.equal(again.keys, trained.keys)
    assert again.epoch == trained.epoch


def test_the_epoch_kept_has_the_lowest_loss_on_dev() -> None:
    train, dev = examples(40, 8, 5, seed=1), examples(200, 8, 5, seed=2)
    keys = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def after(n_epochs: int, patience: int) -> tuple[int, float]:
        config = MapConfig(lr=0.1, batch_size=8, max_epochs=n_epochs, patience=patience)
        trained = train_map(config, train, dev, keys)
        losses = infonce(trained.queries(dev.rows), keys, dev.targets, 1.0)
        return trained.epoch, float(losses.mean())

    # Kept of the first k epochs: its loss falls only where epoch k is a new best.
    kept = [after(k, 99) for k in range(1, 9)]
    losses = [loss for _, loss in kept]
    assert losses == sorted(losses, reverse=True)
    assert kept[-1][0] < 8, "more epochs overfit"
    first_worse = next(k for k in range(1, 8) if kept[k][0] == kept[k - 1][0])
    assert after(8, 1)[0] == kept[first_worse - 1][0], (
        "patience 1 ends at the first that is no better"
    )


def test_sizes_of_keys_do_not_matter() -> None:
    """The map takes them up: predictions are those for keys a hundred times as large."""
    train, dev = examples(200, 4, 6, seed=3), examples(100, 4, 6, seed=4)
    keys = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    config = MapConfig(max_epochs=3)
    found = [
        quality(dev, train_map(config, train, dev, k).queries, Unembedding(k, None), 1.0, 100)
        for k in (keys, 100 * keys)
    ]
    assert found[0].nll == pytest.approx(found[1].nll, rel=1e-4)
    assert found[0].mrr == pytest.approx(found[1].mrr, abs=1e-9)


def test_constant_columns_do_no_harm_and_the_same_seed_gives_the_same_map() -> None:
    train, dev = examples(100, 4, 3, seed=5), examples(50, 4, 3, seed=6)
    keys = torch.eye(3)
    with_constant = [
        Examples(torch.cat([x.rows, torch.full((len(x.rows), 1), 7.0)], 1), x.targets)
        for x in (train, dev)
    ]
    first, second = (train_map(MapConfig(), *with_constant, keys) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert torch.isfinite(first.weight).all()
    assert not first.weight[-1].any()


def test_quality_is_that_of_a_loop() -> None:
    asked = examples(30, 4, 6, seed=7)
    keys = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    found = quality(asked, lambda rows: rows, Unembedding(keys, None), 0.5, 2)
    nll = accuracy = mrr = 0.0
    for row, target in zip(asked.rows.double().numpy(), asked.targets.tolist(), strict=True):
        scores = keys.double().numpy() @ row / 0.5
        nll -= scores[target] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
        rank = 1 + int((scores > scores[target]).sum())
        accuracy += rank == 1
        mrr += 1 / rank if rank <= 2 else 0
    assert (found.nll, found.accuracy, found.mrr) == pytest.approx(
        (nll / 30, accuracy / 30, mrr / 30), rel=1e-5
    )


def test_a_loss_that_is_not_finite_is_refused() -> None:
    train = examples(20, 4, 3, seed=8)
    broken = Examples(train.rows * float("nan"), train.targets)
    with pytest.raises(InputError, match=r"is nan at epoch 1, step 0 .*lower lr"):
        train_map(MapConfig(), broken, broken, torch.eye(3))
